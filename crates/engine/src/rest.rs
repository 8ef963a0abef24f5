//! The rests between steps of work that leaves most of the writer's time to everybody else.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Rests for no longer than this: a step that was slow, because the disk was, says nothing of how the next one will be.
const REST_MAX: Duration = Duration::from_secs(30);

/// Rests for so long, or until `stop`: whoever goes down waits for nobody's rest.
pub(crate) async fn rest(time: Duration, stop: &CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = tokio::time::sleep(time.min(REST_MAX)) => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rest_has_a_bound_and_ends_when_it_is_to_stop() {
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
