//! Runs a command that prints the master key: it must succeed, and within a time limit.

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use posthaste_crypto::secret::SecretText;

use super::{NoMasterKey, file};

/// How often the command is polled for its end.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long after its end its output is awaited: a child process that it left may still hold the output open.
const OUTPUT_WITHIN: Duration = Duration::from_secs(1);

/// Runs a command and returns what it prints. Its input is empty; its stderr is that of this process.
pub(super) fn run(command: &[String], named: &str, within: Duration) -> Result<SecretText, NoMasterKey> {
    let failed = |detail: String| NoMasterKey::Command { from: named.to_owned(), detail };
    let refused = |doing: &str, error: io::Error| failed(format!("{doing}: {error}"));
    let Some((program, arguments)) = command.split_first() else {
        return Err(failed("has no name".to_owned()));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| refused("could not be started", error))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let (sender, output) = mpsc::channel();
    let from = named.to_owned();
    // The thread ends with the command's output; the wait for it is bounded below.
    std::thread::spawn(move || sender.send(file::text(stdout, &from)));
    let status = ended(&mut child, within).map_err(|error| refused("could not be waited for", error))?;
    let Some(status) = status else {
        return Err(failed(format!("did not end within {} s", within.as_secs_f32())));
    };
    if !status.success() {
        return Err(failed(format!("failed ({status})")));
    }
    match output.recv_timeout(OUTPUT_WITHIN) {
        Ok(text) => text.map_err(|error| refused("printed something that is not text", error))?,
        Err(_) => Err(failed("ended and left its output open".to_owned())),
    }
}

/// Runs a blocking function in a thread of its own, and waits for its result.
pub(crate) async fn aside<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(run).await {
        Ok(done) => done,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

/// Waits for the command's end and returns its status; `None` if it was killed after the time limit.
fn ended(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if waited >= within {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK_AGAIN);
        waited += LOOK_AGAIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &[&str], within: Duration, expected: Result<&str, &str>) {
        let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let found = run(&command, "the command", within).map_err(|error| error.to_string());
        match (found, expected) {
            (Ok(text), Ok(expected)) => assert_eq!(text.expose(), expected),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (found, _) => panic!("{command:?}: {found:?}"),
        }
    }

    #[test]
    fn command_output_is_used_only_if_it_succeeds() {
        let within = Duration::from_secs(30);
        check(&["printf", "one\\ntwo\\n"], within, Ok("one\ntwo\n"));
        check(&["sh", "-c", "cat"], within, Ok(""));
        check(&["sh", "-c", "echo key; exit 3"], within, Err("failed (exit status: 3); run it by hand to see why"));
        check(&["there-is-no-such-program"], within, Err("could not be started"));
        check(&[], within, Err("has no name"));
        check(&["sh", "-c", "head -c 5000 /dev/zero"], within, Err("is too long"));
        check(&["printf", "\\377"], within, Err("printed something that is not text"));
    }

    #[test]
    fn command_over_the_time_limit_is_killed() {
        check(&["sleep", "600"], Duration::from_millis(30), Err("did not end within 0.03 s"));
        check(&["sh", "-c", "exec cat /dev/zero"], Duration::from_secs(30), Err("failed (signal: 13 (SIGPIPE)"));
        check(
            &["sh", "-c", "sleep 3 2>/dev/null & echo key"],
            Duration::from_secs(30),
            Err("ended and left its output open"),
        );
    }
}
