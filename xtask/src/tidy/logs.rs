//! Log lines are for people who search them: the message is fixed, everything else is a field, and an object is named by
//! the id that the API shows.

use super::source::{Complaint, SourceFile};

/// The crates whose log lines an operator reads.
const LOGGING: &[&str] = &["crates/engine/src", "crates/store/src", "crates/server/src", "crates/cli/src"];

/// The levels of a default log.
const MACROS: &[&str] = &["info!", "warn!", "error!"];

/// Fields that name an object. Public ids are texts; a value that is printed by its `Display` or `Debug` is a key.
const NAMED: &[&str] = &["message_id", "delivery", "endpoint", "tenant", "lane", "origin", "replay", "job", "scope"];

/// Log lines at `info` and above have a fixed message, and public ids in place of keys.
pub(super) fn check_log_lines(file: &SourceFile) -> Vec<Complaint> {
    if !file.is_in(LOGGING) {
        return Vec::new();
    }
    let calls = MACROS.iter().flat_map(|name| file.find(name)).filter(|at| !file.is_test(*at));
    calls.flat_map(|at| check_call(file, at)).collect()
}

fn check_call(file: &SourceFile, at: usize) -> Vec<Complaint> {
    let end = at + call_length(&file.code[at..]);
    let mut complaints = Vec::new();
    // The message is the last literal.
    if file.text[at..end].rsplit('"').nth(1).is_some_and(|message| message.contains('{')) {
        complaints.push(file.complaint(at, "a log message with a value in it", "make the value a field"));
    }
    let squeezed: String = file.code[at..end].to_lowercase().split_whitespace().collect();
    for name in NAMED {
        let fields = [format!("{name}="), format!("field::{}}}=", name.trim_end_matches("_id"))];
        let is_key = |field: &String| {
            squeezed.match_indices(field.as_str()).any(|(at, _)| {
                let is_whole = !squeezed[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
                is_whole && squeezed[at + field.len()..].starts_with(['%', '?'])
            })
        };
        if fields.iter().any(is_key) {
            let what = format!("the log field {name} shows a key");
            complaints.push(file.complaint(at, what, "log its public id, as the API shows it"));
        }
    }
    complaints
}

/// The length of a macro call, up to the parenthesis that closes it.
fn call_length(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth <= 1 => return at + 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    const FILE: &str = "crates/engine/src/sender.rs";

    #[test]
    fn keys_are_reported_in_log_lines_of_an_operator_and_public_ids_are_not() {
        check(check_log_lines, FILE, "tracing::warn!(delivery = %start.delivery, %error, \"lost\");", &[1]);
        check(check_log_lines, FILE, "tracing::error!(\n    { field::ENDPOINT } = ?id,\n    \"lost\"\n);", &[1]);

        check(check_log_lines, FILE, "tracing::warn!({ field::DELIVERY } = id, %error, \"lost\");", &[]);
        check(check_log_lines, FILE, "tracing::debug!(delivery = %key, \"sent\");", &[]);
        check(check_log_lines, "crates/simulator/src/lib.rs", "tracing::warn!(delivery = %key, \"lost\");", &[]);
    }

    #[test]
    fn values_in_log_messages_are_reported() {
        check(check_log_lines, FILE, "tracing::info!(\"sent {id}\");", &[1]);
        check(check_log_lines, FILE, "tracing::info!(count, \"sent to {}\", url);", &[1]);
    }
}
