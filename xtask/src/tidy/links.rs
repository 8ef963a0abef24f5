//! Every relative link in the docs leads to an existing file, and to a heading of it where it names one.

use std::fs;
use std::ops::Range;
use std::path::Path;

use super::source::{Complaint, SourceFile, lines};

/// Every relative link of a page has an existing target.
pub(super) fn check_links(file: &SourceFile) -> Vec<Complaint> {
    if !file.is("md") {
        return Vec::new();
    }
    links(&file.text)
        .into_iter()
        .filter_map(|place| {
            let what = broken(file, &file.text[place.clone()])?;
            Some(file.complaint(place.start, what, "fix the link or write the page it names"))
        })
        .collect()
}

fn broken(file: &SourceFile, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let page = if path.is_empty() {
        file.text.clone()
    } else {
        let folder = file.root.join(&file.path).parent().map(Path::to_owned).unwrap_or_default();
        let linked = folder.join(path);
        if !linked.exists() {
            return Some(format!("the link to {target} leads to no file"));
        }
        if heading.is_empty() {
            return None;
        }
        fs::read_to_string(linked).unwrap_or_default()
    };
    let known = heading.is_empty() || headings(&page).iter().any(|known| known == heading);
    (!known).then(|| format!("the link to {target} leads to no heading"))
}

/// The positions of the targets of a page's links, without those in code.
fn links(page: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (start, line) in lines(page) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.extend(links_of_line(line).into_iter().map(|place| start + place.start..start + place.end));
        }
    }
    found
}

fn links_of_line(line: &str) -> Vec<Range<usize>> {
    let in_code = |at: usize| line[..at].matches('`').count() % 2 == 1;
    line.match_indices("](")
        .map(|(at, open)| at + open.len())
        .filter(|at| !in_code(*at))
        .filter_map(|at| Some(at..at + line[at..].find(')')?))
        .collect()
}

/// The anchors of a page's headings: lower case, dashes for blanks, no punctuation.
fn headings(page: &str) -> Vec<String> {
    let mut fenced = false;
    page.lines()
        .filter(|line| {
            fenced ^= line.trim_start().starts_with("```");
            !fenced && line.starts_with('#')
        })
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn only_links_without_a_target_are_reported() {
        check(check_links, "docs/a.md", "\n[gone](no-such-page.md)", &[2]);
        check(check_links, "a.md", "# One thing\n[there](#one-thing) [not there](#another)", &[2]);

        check(check_links, "a.md", "[manifest](Cargo.toml) and [xtask](xtask/src/main.rs)", &[]);
        check(check_links, "docs/a.md", "[up](../Cargo.toml)", &[]);
        check(check_links, "a.md", "[elsewhere](https://example.com/x)", &[]);
        check(check_links, "a.md", "`[code](nowhere.md)`\n```\n[code](nowhere.md)\n```\n", &[]);
    }

    #[test]
    fn headings_become_anchors() {
        let page = "# Two commands\n```\n# not one\n```\n## It's `here`: now";
        assert_eq!(headings(page), ["two-commands", "its-here-now"]);
    }
}
