//! The pauses between steps of background work, which leave most of the writer thread's time to other work.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The longest pause: one slow step, such as on a busy disk, does not predict the next one.
const REST_MAX: Duration = Duration::from_secs(30);

/// Pauses for this time, at most 30 s, or until `stop`.
pub(crate) async fn rest(time: Duration, stop: &CancellationToken) {
    wait(tokio::time::sleep(time.min(REST_MAX)), stop).await;
}

/// Waits for an event, or until `stop`.
pub(crate) async fn wait(event: impl Future, stop: &CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        _ = event => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rest_is_bounded_and_ends_at_shutdown() {
        let (begun, stop) = (Instant::now(), CancellationToken::new());
        rest(Duration::from_secs(2), &stop).await;
        assert_eq!(begun.elapsed().as_secs(), 2);
        rest(Duration::from_secs(3_600), &stop).await;
        assert_eq!(begun.elapsed().as_secs(), 32);
        let stops = async {
            tokio::time::advance(Duration::from_secs(1)).await;
            stop.cancel();
        };
        tokio::join!(rest(Duration::from_secs(20), &stop), stops);
        assert_eq!(begun.elapsed().as_secs(), 33);
    }
}
