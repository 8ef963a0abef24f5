//! Whose certificates we believe.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

/// The authorities that may vouch for a receiver.
#[derive(Clone, Debug)]
pub struct Roots(RootCertStore);

/// No receiver could be believed.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A slim container, perhaps.
    #[error("the system has no trusted certificates ({problems} problems reading them); install its CA bundle")]
    NoSystemRoots {
        /// How many files or entries could not be read.
        problems: usize,
    },
    /// An authority the operator added.
    #[error("cannot use the certificate of an extra authority; give a CA's certificate")]
    BadRoot(#[source] rustls::Error),
}

impl Roots {
    /// Those of the operating system. Reads its bundle: once, at start.
    pub fn system() -> Result<Self, TrustError> {
        let found = rustls_native_certs::load_native_certs();
        let mut store = RootCertStore::empty();
        let (usable, unusable) = store.add_parsable_certificates(found.certs);
        match usable {
            0 => Err(TrustError::NoSystemRoots { problems: found.errors.len() + unusable }),
            _ => Ok(Self(store)),
        }
    }

    /// None at all: only those added afterwards are believed.
    pub fn none() -> Self {
        Self(RootCertStore::empty())
    }

    /// These and one more.
    pub fn with(mut self, authority: CertificateDer<'static>) -> Result<Self, TrustError> {
        self.0.add(authority).map_err(TrustError::BadRoot)?;
        Ok(self)
    }

    /// The provider is named here and not left to a process-wide default, which another crate
    /// could set or forget. Keys are never logged, whatever the environment says.
    pub(super) fn config(self) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider speaks TLS 1.2 and 1.3")
            .with_root_certificates(self.0)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}
