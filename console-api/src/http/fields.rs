//! Strict JSON: a request's body is one object; a field that is not known, comes twice, or has the wrong type
//! is refused by its name. Numbers are compared by value: `5.0` and `50e-1` are 5.
//!
//! The values stay text until the field is known, so that a value which no type could hold still has a name to
//! be refused by.

use super::problem::Problem;
use jiff::Timestamp;
use serde::Deserializer;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::ops::RangeInclusive;

/// A request's body, read from its fields.
pub trait FromFields: Sized {
    const KNOWN: &'static [&'static str];
    fn read(fields: &mut Fields) -> Result<Self, Problem>;
}

pub struct Fields {
    fields: Vec<(String, Box<RawValue>)>,
}

/// Reads the whole of a body.
pub fn read<T: FromFields>(body: &[u8]) -> Result<T, Problem> {
    let mut fields = Fields::parse(body)?;
    if let Some((name, _)) = fields.fields.iter().find(|(name, _)| !T::KNOWN.contains(&name.as_str())) {
        let detail = format!("There is no such field; there are: {}.", T::KNOWN.join(", "));
        return Err(Problem::invalid(shown(name), detail));
    }
    let twice = |known: &&&str| fields.fields.iter().filter(|(name, _)| name == **known).count() > 1;
    if let Some(name) = T::KNOWN.iter().find(twice) {
        return Err(Problem::invalid(*name, "The field is there more than once."));
    }
    T::read(&mut fields)
}

impl Fields {
    fn parse(body: &[u8]) -> Result<Fields, Problem> {
        let text = std::str::from_utf8(body).map_err(|_| Problem::malformed("The body is not UTF-8."))?;
        let malformed = |error: serde_json::Error| {
            let (line, column) = (error.line(), error.column());
            Problem::malformed(format!("The body is not one JSON object (line {line}, column {column})."))
        };
        let mut json = serde_json::Deserializer::from_str(text);
        let fields = json.deserialize_map(Object).map_err(malformed)?;
        json.end().map_err(malformed)?;
        Ok(Fields { fields })
    }

    /// A field's text; `null` is as good as leaving it out.
    fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        let at = self.fields.iter().position(|(known, _)| known == name)?;
        let (_, value) = self.fields.swap_remove(at);
        (value.get() != "null").then_some(value)
    }

    fn need<T>(name: &str, value: Option<T>) -> Result<T, Problem> {
        value.ok_or_else(|| Problem::invalid(name, "The field is missing."))
    }

    /// A string of so many characters, none of them a control character.
    pub fn text(&mut self, name: &str, length: RangeInclusive<usize>) -> Result<String, Problem> {
        let value = self.text_if_any(name, length)?;
        Self::need(name, value)
    }

    pub fn text_if_any(
        &mut self,
        name: &str,
        length: RangeInclusive<usize>,
    ) -> Result<Option<String>, Problem> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let text: String = serde_json::from_str(value.get())
            .map_err(|_| Problem::invalid(name, "The field must be a string."))?;
        if !length.contains(&text.chars().count()) {
            let (least, most) = length.into_inner();
            return Err(Problem::invalid(name, format!("The field must have {least} to {most} characters.")));
        }
        if text.chars().any(char::is_control) {
            return Err(Problem::invalid(name, "The field must not have control characters."));
        }
        Ok(Some(text))
    }

    pub fn texts(&mut self, name: &str) -> Result<Vec<String>, Problem> {
        let value = Self::need(name, self.take(name))?;
        serde_json::from_str(value.get())
            .map_err(|_| Problem::invalid(name, "The field must be a list of strings."))
    }

    /// A whole number, by value.
    pub fn whole(&mut self, name: &str, range: RangeInclusive<u32>) -> Result<u32, Problem> {
        let value = Self::need(name, self.take(name))?;
        let number = whole(value.get()).and_then(|number| u32::try_from(number).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let (least, most) = range.into_inner();
            Problem::invalid(name, format!("The field must be a whole number from {least} to {most}."))
        })
    }

    /// RFC 3339, with any offset.
    pub fn time_if_any(&mut self, name: &str) -> Result<Option<Timestamp>, Problem> {
        let Some(text) = self.text_if_any(name, 1..=64)? else { return Ok(None) };
        let bad = |_| {
            Problem::invalid(name, "The field must be a time in RFC 3339, such as 2027-01-31T12:00:00.000Z.")
        };
        // The library reads more than RFC 3339 allows.
        let plain = text.is_ascii() && !text.contains(['[', ',']) && text.as_bytes().get(4) == Some(&b'-');
        if !plain {
            return Err(bad(()));
        }
        text.parse().map(Some).map_err(|_| bad(()))
    }
}

/// A JSON number that is whole, exactly, whatever way it is written; None for any other text or when it is too
/// large to matter.
fn whole(text: &str) -> Option<i64> {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (int, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{int}{fraction}");
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    let trailing = digits.len() - digits.trim_end_matches('0').len();
    let exponent = exponent.parse::<i64>().ok()?;
    let shift = exponent.checked_sub(fraction.len() as i64)?.checked_add(trailing as i64)?;
    let shift = u32::try_from(shift).ok()?;
    let number = significant.parse::<i64>().ok()?.checked_mul(10_i64.checked_pow(shift)?)?;
    Some(if negative { -number } else { number })
}

/// What a caller wrote, short enough to be repeated to them.
pub fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 128;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Vec<(String, Box<RawValue>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::ErrorCode;

    #[derive(Debug, PartialEq)]
    struct Thing {
        name: String,
        size: u32,
        until: Option<Timestamp>,
    }

    impl FromFields for Thing {
        const KNOWN: &'static [&'static str] = &["name", "size", "until"];
        fn read(fields: &mut Fields) -> Result<Self, Problem> {
            Ok(Thing {
                name: fields.text("name", 1..=5)?,
                size: fields.whole("size", 1..=9)?,
                until: fields.time_if_any("until")?,
            })
        }
    }

    fn blamed(body: &str) -> Option<String> {
        let problem = read::<Thing>(body.as_bytes()).expect_err(body);
        assert_eq!(problem.code, ErrorCode::InvalidRequest, "{body}");
        problem.field
    }

    #[test]
    fn the_field_to_blame_is_named() {
        for (body, field) in [
            (r#"{"name":"a"}"#, "size"),
            (r#"{"size":1}"#, "name"),
            (r#"{"name":null,"size":1}"#, "name"),
            (r#"{"name":1,"size":1}"#, "name"),
            (r#"{"name":"","size":1}"#, "name"),
            (r#"{"name":"abcdef","size":1}"#, "name"),
            (r#"{"name":"a\u0000","size":1}"#, "name"),
            (r#"{"name":"\ud800","size":1}"#, "name"),
            (r#"{"name":"a","size":1,"Size":1}"#, "Size"),
            (r#"{"name":"a","size":1,"size":1}"#, "size"),
            (r#"{"name":"a","size":5.5}"#, "size"),
            (r#"{"name":"a","size":"5"}"#, "size"),
            (r#"{"name":"a","size":-1}"#, "size"),
            (r#"{"name":"a","size":10}"#, "size"),
            (r#"{"name":"a","size":1e999}"#, "size"),
            (r#"{"name":"a","size":1e99999999999999999999}"#, "size"),
            (r#"{"name":"a","size":1,"until":"tomorrow"}"#, "until"),
            (r#"{"name":"a","size":1,"until":"2027-01-31"}"#, "until"),
        ] {
            assert_eq!(blamed(body).as_deref(), Some(field), "{body}");
        }
    }

    #[test]
    fn what_is_no_object_has_no_field_to_blame() {
        for body in ["", "[]", "1", "null", "\"a\"", "{", "{}{}", r#"{"name":}"#, r#"{"name":"a",}"#] {
            assert_eq!(blamed(body), None, "{body}");
        }
        assert!(read::<Thing>(b"{\"name\":\"\xff\"}").is_err());
        assert!(read::<Thing>("[".repeat(60_000).as_bytes()).is_err());
        assert!(read::<Thing>(format!(r#"{{"name":{}}}"#, "[".repeat(60_000)).as_bytes()).is_err());
    }

    #[test]
    fn numbers_count_by_value() {
        for five in ["5", "5.0", "5.000", "50e-1", "0.5e1", "0.05E+2", "5e0", "500e-2"] {
            let body = format!(r#"{{"name":"a","size":{five}}}"#);
            assert_eq!(read::<Thing>(body.as_bytes()).map(|thing| thing.size).ok(), Some(5), "{five}");
        }
        // A double cannot tell this from 5.
        assert_eq!(whole("5.00000000000000000000000001"), None);
        assert_eq!(whole("-0.0"), Some(0));
        assert_eq!(whole("0e999999999999999999999"), Some(0));
    }

    #[test]
    fn times_have_any_offset() {
        let body = r#"{"name":"a","size":1,"until":"2027-01-31T13:00:00+01:00"}"#;
        let thing = read::<Thing>(body.as_bytes()).expect("a thing");
        assert_eq!(thing.until.map(|time| format!("{time:.3}")).as_deref(), Some("2027-01-31T12:00:00.000Z"));
    }

    proptest! {
        #[test]
        fn no_body_breaks_the_reader(body in ".{0,60}") {
            let _ = read::<Thing>(body.as_bytes());
        }

        #[test]
        fn whole_agrees_with_the_number_written(n in -1_000_000_i64..1_000_000, zeros in 0_usize..4) {
            let suffix = "0".repeat(zeros);
            prop_assert_eq!(whole(&format!("{n}.{suffix}0")), Some(n));
            prop_assert_eq!(whole(&format!("{n}{suffix}e-{zeros}")), Some(n));
            prop_assert_eq!(whole(&format!("{n}.5")), None);
        }
    }
}
