//! A certificate authority for proofs, for receivers that speak TLS on loopback.

use std::io;
use std::sync::Arc;

use posthaste_engine::connector::Roots;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate authority that is trusted only through [`Authority::roots`].
#[derive(Debug)]
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority with a key of its own.
    ///
    /// # Errors
    /// If no key can be generated.
    pub fn new() -> io::Result<Self> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).map_err(io::Error::other)?.der().clone();
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    /// Root certificates with this authority alone.
    ///
    /// # Errors
    /// If its certificate cannot be used.
    pub fn roots(&self) -> io::Result<Roots> {
        Roots::none().with(self.certificate.clone()).map_err(io::Error::other)
    }

    /// A TLS acceptor for a receiver, with a certificate for this name or address.
    ///
    /// # Errors
    /// If the name is not valid in a certificate.
    pub fn acceptor(&self, name: &str) -> io::Result<TlsAcceptor> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let params = CertificateParams::new(vec![name.to_owned()]).map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(io::Error::other)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(io::Error::other)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
