//! Waiting for a state, never for a time.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
#[error("{what}: not within {waited:?}; last seen: {last}")]
pub struct NotInTime {
    pub what: String,
    pub waited: Duration,
    /// What the last look saw instead.
    pub last: String,
}

/// Looks until `look` finds what it looks for. While it does not, it says what it sees.
pub async fn wait_until<T, E, Fut>(
    deadline: Duration,
    what: impl Into<String>,
    mut look: impl FnMut() -> Fut,
) -> Result<T, NotInTime>
where
    E: Display,
    Fut: Future<Output = Result<T, E>>,
{
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut last = String::from("nothing yet");
    loop {
        let left = deadline.saturating_sub(begun.elapsed());
        match tokio::time::timeout(left, look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(seen)) => last = seen.to_string(),
            Err(_) => last = format!("{last} (and a look that did not end)"),
        }
        if begun.elapsed() >= deadline {
            return Err(NotInTime { what: what.into(), waited: begun.elapsed(), last });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_never_comes_is_reported_with_what_was_seen() {
        let seen =
            wait_until(Duration::from_millis(30), "a unicorn", || async { Err::<(), _>("a horse") }).await;
        let error = seen.expect_err("there are none").to_string();
        assert!(error.contains("a unicorn") && error.contains("a horse"), "{error}");
    }
}
