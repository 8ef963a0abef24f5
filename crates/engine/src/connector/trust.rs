//! Whose certificates we believe.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};

use super::Identity;

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
    /// A file of roots that cannot be read, or is not PEM.
    #[error("cannot read trusted certificates from {}; give a PEM file", path.display())]
    BadFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A file of roots without one.
    #[error("{} has no certificate that can be trusted; give a PEM file of authorities", path.display())]
    EmptyFile {
        /// Which.
        path: PathBuf,
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

    /// Those of a PEM file, and no others.
    pub fn file(path: &Path) -> Result<Self, TrustError> {
        let bad = |source| TrustError::BadFile { path: path.to_owned(), source };
        let certificates: Vec<_> =
            CertificateDer::pem_file_iter(path).map_err(bad)?.collect::<Result<_, _>>().map_err(bad)?;
        let mut store = RootCertStore::empty();
        match store.add_parsable_certificates(certificates) {
            (0, _) => Err(TrustError::EmptyFile { path: path.to_owned() }),
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

    /// What a handshake needs: for an endpoint with an identity these roots and its own authorities,
    /// and its certificate if the receiver asks for one. Keys are never logged, whatever the
    /// environment says.
    pub(super) fn config(&self, identity: Option<&Identity>) -> ClientConfig {
        let mut roots = self.0.clone();
        let extra = identity.map_or(&[][..], Identity::authorities);
        roots.add_parsable_certificates(extra.iter().cloned());
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider speaks TLS 1.2 and 1.3")
            .with_root_certificates(roots);
        match identity.and_then(Identity::client) {
            Some(client) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(client)))),
            None => builder.with_no_client_auth(),
        }
    }
}

/// Named wherever one is needed and not left to a process-wide default, which another crate could
/// set or forget.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
