//! A self-signed certificate for receivers with TLS, made for one run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

const KEY: &str = "key.der";

/// The path of the certificate in a folder.
pub(super) fn file(folder: &Path) -> PathBuf {
    folder.join("certificate.pem")
}

/// Makes a self-signed certificate and its key in a folder.
pub(super) fn make(folder: &Path) -> Result<()> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).context("cannot make a certificate")?;
    std::fs::write(file(folder), pem(made.cert.der()))?;
    std::fs::write(folder.join(KEY), made.signing_key.serialize_der())?;
    Ok(())
}

/// Encodes a certificate as PEM.
fn pem(certificate: &[u8]) -> String {
    const LINE: usize = 64;
    let text = STANDARD.encode(certificate);
    let lines: Vec<&str> = (0..text.len()).step_by(LINE).map(|at| &text[at..text.len().min(at + LINE)]).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// The TLS settings of a receiver with this folder's certificate.
pub(super) fn presented(folder: &Path) -> Result<Arc<ServerConfig>> {
    let certificate = read(&file(folder))?;
    let key = std::fs::read(folder.join(KEY)).context("cannot read the receiver's key")?;
    let key = PrivatePkcs8KeyDer::from(key).into();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    Ok(Arc::new(config))
}

/// The TLS settings of a bare client that trusts only this certificate.
pub(super) fn trusted(certificate: &Path) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(read(certificate)?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn read(certificate: &Path) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_file(certificate).with_context(|| format!("cannot read {}", certificate.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_certificate_can_be_read_by_both_sides() {
        let folder = tempfile::tempdir().expect("a folder");
        make(folder.path()).expect("it is made");
        assert!(presented(folder.path()).is_ok() && trusted(&file(folder.path())).is_ok());
    }
}
