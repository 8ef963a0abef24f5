//! Resolving names. The addresses are checked in [`crate::target`].

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

/// Resolves names. The caller bounds the time.
pub trait Resolve: std::fmt::Debug + Send + Sync + 'static {
    /// All addresses of both families; never only some of them.
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>>;
}

/// The operating system's resolver, with its hosts file and name service switch.
///
/// A look-up holds a thread of the runtime's blocking pool and cannot be cancelled; the pool's size
/// bounds the number of look-ups.
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

/// Classifies a resolver's error by its text, since [`io::Error`] does not keep the C library's error
/// code. The texts are those of glibc and musl, untranslated because the process sets no locale.
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
    fn missing_name_and_failing_resolver_have_different_results() {
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
