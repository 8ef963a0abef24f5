//! A self-signed certificate for receivers with TLS, made for one run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::prove::{CannotRun, Context};

const KEY: &str = "key.der";

/// The path of the certificate in a folder.
pub(super) fn file(folder: &Path) -> PathBuf {
    folder.join("certificate.pem")
}

/// Makes a self-signed certificate and its key in a folder.
pub(super) fn make(folder: &Path) -> Result<(), CannotRun> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).context("cannot make a certificate")?;
    std::fs::write(file(folder), made.cert.pem())?;
    Ok(std::fs::write(folder.join(KEY), made.signing_key.serialize_der())?)
}

/// The TLS settings of a receiver with this folder's certificate.
pub(super) fn presented(folder: &Path) -> Result<Arc<ServerConfig>, CannotRun> {
    let certificate = read(&file(folder))?;
    let key = std::fs::read(folder.join(KEY)).context("cannot read the receiver's key")?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder.with_no_client_auth().with_single_cert(vec![certificate], PrivatePkcs8KeyDer::from(key).into())
        });
    config.map(Arc::new).context("the receiver cannot use its certificate")
}

/// The TLS settings of a bare client that trusts only this certificate.
pub(super) fn trusted(certificate: &Path) -> Result<Arc<ClientConfig>, CannotRun> {
    let mut roots = RootCertStore::empty();
    roots.add(read(certificate)?).context("the client cannot use the receiver's certificate")?;
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().context("the client cannot use TLS")?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

fn read(certificate: &Path) -> Result<CertificateDer<'static>, CannotRun> {
    CertificateDer::from_pem_file(certificate).context(format!("cannot read {}", certificate.display()))
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
