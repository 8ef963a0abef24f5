//! The certificate authorities that are trusted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};

use super::Identity;

/// The authorities that receivers' certificates are checked against.
#[derive(Clone, Debug)]
pub struct Roots(RootCertStore);

/// Why there are no trusted authorities, so that every TLS handshake would fail.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The system has no bundle of authorities, as in a minimal container image.
    #[error("the system has no trusted certificates ({problems} problems reading them); install its CA bundle")]
    NoSystemRoots { problems: usize },
    #[error("cannot read trusted certificates from {}; give a PEM file", path.display())]
    BadFile {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("{} has no certificate that can be trusted; give a PEM file of authorities", path.display())]
    EmptyFile { path: PathBuf },
    #[error("cannot use the certificate of an extra authority; give a CA's certificate")]
    BadRoot(#[source] rustls::Error),
}

impl Roots {
    /// The authorities of the operating system. Reads its bundle, so call it once at the start.
    pub fn system() -> Result<Self, TrustError> {
        let found = rustls_native_certs::load_native_certs();
        let mut store = RootCertStore::empty();
        let (usable, unusable) = store.add_parsable_certificates(found.certs);
        match usable {
            0 => Err(TrustError::NoSystemRoots { problems: found.errors.len() + unusable }),
            _ => Ok(Self(store)),
        }
    }

    /// The authorities of a PEM file, and no others.
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

    /// No authorities: only those added afterwards are trusted.
    pub fn none() -> Self {
        Self(RootCertStore::empty())
    }

    pub fn with(mut self, authority: CertificateDer<'static>) -> Result<Self, TrustError> {
        self.0.add(authority).map_err(TrustError::BadRoot)?;
        Ok(self)
    }

    /// The configuration of a handshake: these roots, and with an identity also its own authorities and its
    /// client certificate, which is sent if the receiver asks for one. TLS keys are never logged, even with
    /// `SSLKEYLOGFILE` set.
    pub(super) fn config(&self, identity: Option<&Identity>) -> ClientConfig {
        let mut roots = self.0.clone();
        let extra = identity.map_or(&[][..], |identity| &identity.authorities);
        roots.add_parsable_certificates(extra.iter().cloned());
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider speaks TLS 1.2 and 1.3")
            .with_root_certificates(roots);
        match identity.and_then(|identity| identity.client.as_ref()) {
            Some(client) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(client)))),
            None => builder.with_no_client_auth(),
        }
    }
}

/// The cryptography provider. It is always passed explicitly: another crate could change the process-wide default.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
