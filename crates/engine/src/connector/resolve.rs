//! From a name to its addresses. What they are worth is judged in [`crate::target`].

use std::io;
use std::net::IpAddr;

use futures_util::future::BoxFuture;

/// Why a name gave no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The name does not exist, or has no address.
    NotFound,
    /// The resolver failed or does not answer: nothing is known of the name.
    Failed,
}

/// Looks names up. The caller bounds its time.
pub trait Resolve: std::fmt::Debug + Send + Sync + 'static {
    /// All addresses of both families; never a part of them.
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>>;
}

/// The operating system's resolver, with its hosts file and name service switch.
///
/// It holds a thread of the runtime's blocking pool for a look-up, which cannot be cancelled; the
/// pool's size bounds them.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Resolve for System {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>> {
        Box::pin(async move {
            match tokio::net::lookup_host((name, 0)).await {
                Ok(answers) => Ok(answers.map(|answer| answer.ip()).collect()),
                Err(error) => Err(meaning(&error)),
            }
        })
    }
}

/// The C library's error code does not survive in [`io::Error`], but its text does: that of glibc
/// and that of musl, neither translated because the process sets no locale.
fn meaning(error: &io::Error) -> NoAnswer {
    const NOT_FOUND: &[&str] = &[
        "Name or service not known",
        "No address associated with hostname",
        "Address family for hostname not supported",
        "Name does not resolve",
        "Name has no usable address",
    ];
    let text = error.to_string();
    if NOT_FOUND.iter().any(|known| text.contains(known)) { NoAnswer::NotFound } else { NoAnswer::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_name_is_told_from_a_failing_resolver() {
        let check = |text: &str| meaning(&io::Error::other(format!("failed to lookup address information: {text}")));
        assert_eq!(check("Name or service not known"), NoAnswer::NotFound);
        assert_eq!(check("Name does not resolve"), NoAnswer::NotFound);
        assert_eq!(check("Temporary failure in name resolution"), NoAnswer::Failed);
        assert_eq!(check("Try again"), NoAnswer::Failed);
    }

    #[tokio::test]
    async fn the_system_resolver_reads_the_hosts_file() {
        let addresses = System.resolve("localhost").await.expect("every machine knows localhost");
        assert!(!addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
    }
}
