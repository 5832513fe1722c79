//! JSON bodies, read strictly and without copies: unknown and duplicate fields are refused by name, numbers are
//! compared by value (`5.0` is 5), and what is wrong names its field. `null` is a field left out.

use super::problem::Problem;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// More than any object of the contract has.
const FIELDS_MAX: usize = 64;

/// An object whose fields are taken one by one; what is left at the end is unknown.
#[derive(Debug)]
pub struct Object<'a> {
    fields: Vec<(Text<'a>, &'a RawValue)>,
}

#[derive(Debug, serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Object<'a> {
    pub fn read(body: &'a [u8]) -> Result<Object<'a>, Problem> {
        let text = std::str::from_utf8(body).map_err(|_| Problem::malformed("the body is not UTF-8"))?;
        let object = serde_json::from_str::<Object<'a>>(text);
        let object =
            object.map_err(|error| Problem::malformed(format!("the body is no JSON object: {error}")))?;
        object.refuse_duplicates()
    }

    /// The object that is the value of `field`.
    pub fn nested(field: &'static str, value: &'a RawValue) -> Result<Object<'a>, Problem> {
        let object = serde_json::from_str::<Object<'a>>(value.get());
        object.map_err(|_| Problem::invalid(field, "must be an object"))?.refuse_duplicates()
    }

    pub(super) fn refuse_duplicates(self) -> Result<Object<'a>, Problem> {
        for (i, (name, _)) in self.fields.iter().enumerate() {
            if self.fields[..i].iter().any(|(earlier, _)| earlier.0 == name.0) {
                return Err(Problem::invalid(name.0.to_string(), "named twice"));
            }
        }
        Ok(self)
    }

    /// Whether `field` is there and `null`.
    pub fn is_null(&self, field: &str) -> bool {
        self.fields.iter().any(|(name, value)| name.0 == field && value.get() == "null")
    }

    /// All of it, where every value is a string.
    pub fn into_texts(self) -> Result<Vec<(String, String)>, serde_json::Error> {
        let text = |(name, value): (Text<'a>, &'a RawValue)| {
            serde_json::from_str::<String>(value.get()).map(|value| (name.0.into_owned(), value))
        };
        self.fields.into_iter().map(text).collect()
    }

    /// As written; `null` too.
    pub fn take_raw(&mut self, field: &str) -> Option<&'a RawValue> {
        let at = self.fields.iter().position(|(name, _)| name.0 == field)?;
        Some(self.fields.swap_remove(at).1)
    }

    pub fn take(&mut self, field: &str) -> Option<&'a RawValue> {
        self.take_raw(field).filter(|value| value.get() != "null")
    }

    pub fn end(self) -> Result<(), Problem> {
        match self.fields.into_iter().next() {
            Some((name, _)) => Err(Problem::invalid(name.0.into_owned(), "no such field here")),
            None => Ok(()),
        }
    }

    pub fn text(&mut self, field: &'static str) -> Result<Option<Cow<'a, str>>, Problem> {
        let read = |value: &'a RawValue| serde_json::from_str::<Text<'a>>(value.get());
        let text = self.take(field).map(read).transpose();
        Ok(text.map_err(|_| Problem::invalid(field, "must be a string"))?.map(|text| text.0))
    }

    pub fn flag(&mut self, field: &'static str) -> Result<Option<bool>, Problem> {
        match self.take(field).map(RawValue::get) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(Problem::invalid(field, "must be true or false")),
        }
    }

    pub fn whole(&mut self, field: &'static str, min: u64, max: u64) -> Result<Option<u64>, Problem> {
        self.take(field).map(|value| whole(field, value.get(), min, max)).transpose()
    }

    pub fn seconds(
        &mut self,
        field: &'static str,
        min: Duration,
        max: Duration,
    ) -> Result<Option<Duration>, Problem> {
        self.take(field).map(|value| seconds(field, value.get(), min, max)).transpose()
    }
}

/// A JSON number without a fraction. Exact up to 2^53, which is beyond every bound of the contract.
pub fn whole(field: &'static str, text: &str, min: u64, max: u64) -> Result<u64, Problem> {
    let number = serde_json::from_str::<f64>(text).ok().filter(|number| number.fract() == 0.0);
    let fits = number.filter(|number| (min as f64..=max as f64).contains(number));
    let wrong = || Problem::invalid(field, format!("must be a whole number from {min} to {max}"));
    fits.map(|number| number as u64).ok_or_else(wrong)
}

/// A JSON number of seconds; milliseconds count.
pub fn seconds(field: &'static str, text: &str, min: Duration, max: Duration) -> Result<Duration, Problem> {
    let number = serde_json::from_str::<f64>(text).ok();
    let fits = number.filter(|number| (min.as_secs_f64()..=max.as_secs_f64()).contains(number));
    let wrong = || {
        let (min, max) = (min.as_secs_f64(), max.as_secs_f64());
        Problem::invalid(field, format!("must be a number of seconds from {min} to {max}"))
    };
    fits.map(|number| Duration::from_millis((number * 1000.0).round() as u64)).ok_or_else(wrong)
}

/// 1 to `max` of them; not one more is read. Which one is none, is said.
pub fn list<'a, T: Deserialize<'a>>(
    field: &'static str,
    value: &'a RawValue,
    max: usize,
    what: &str,
) -> Result<Vec<T>, Problem> {
    let mut items = Vec::new();
    let list = Items { items: &mut items, max };
    let read = list.deserialize(&mut serde_json::Deserializer::from_str(value.get()));
    match read {
        Ok(()) if !items.is_empty() => Ok(items),
        Err(_) if !value.get().starts_with('[') => {
            Err(Problem::invalid(field, format!("must be a list of {what}")))
        }
        Err(error) if items.len() < max => {
            Err(Problem::invalid(field, format!("must be a list of {what}: {error}")).at(items.len()))
        }
        _ => Err(Problem::invalid(field, format!("must be a list of 1 to {max} {what}"))),
    }
}

struct Items<'v, T> {
    items: &'v mut Vec<T>,
    max: usize,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Items<'_, T> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<'_, T> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<(), S::Error> {
        while self.items.len() < self.max {
            match seq.next_element()? {
                Some(item) => self.items.push(item),
                None => return Ok(()),
            }
        }
        match seq.next_element::<IgnoredAny>()? {
            Some(_) => Err(S::Error::custom("too many")),
            None => Ok(()),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Object<'de>, M::Error> {
                let mut fields = Vec::with_capacity(4);
                while let Some(field) = map.next_entry()? {
                    if fields.len() == FIELDS_MAX {
                        return Err(M::Error::custom("too many fields"));
                    }
                    fields.push(field);
                }
                Ok(Object { fields })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_names_its_field() {
        let field = |problem: Problem| problem.field.map(Cow::into_owned);
        let twice = Object::read(br#"{"a":1,"a":2}"#).expect_err("twice");
        assert_eq!(field(twice).as_deref(), Some("a"));
        let mut object =
            Object::read(br#"{"n":5.0,"s":"x\u00e4","d":0.5,"b":true,"z":null,"u":{}}"#).expect("one");
        assert_eq!(object.whole("n", 1, 10), Ok(Some(5)));
        assert_eq!(object.text("s"), Ok(Some("xä".into())));
        let second = Duration::from_secs(1);
        assert_eq!(object.seconds("d", Duration::ZERO, second), Ok(Some(second / 2)));
        assert_eq!((object.flag("b"), object.text("z")), (Ok(Some(true)), Ok(None)));
        assert_eq!(field(object.end().expect_err("unknown")).as_deref(), Some("u"));
        for bad in [&b"["[..], b"[]", b"{", b"{\"a\":1} x", b"\xff", b"", b"5"] {
            assert!(Object::read(bad).is_err(), "{bad:?}");
        }
        for bad in ["5.5", "\"5\"", "11", "0", "1e400", "-1"] {
            assert!(whole("n", bad, 1, 10).is_err(), "{bad}");
        }
    }
}
