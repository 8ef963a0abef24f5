//! Selecting a tenant's endpoints by subject and by tag.

use std::sync::Arc;

use posthaste_core::EndpointId;

use super::Endpoint;

/// Selects a tenant's endpoints: those that belong to one of the subjects, if any are named, and carry one of the tags,
/// if any are named. At least one subject or tag is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSelector {
    subjects: Vec<String>,
    tags: Vec<String>,
}

impl EndpointSelector {
    /// A selector for these subjects and tags; `None` if both are empty.
    pub fn new(subjects: &[String], tags: &[String]) -> Option<Self> {
        let named = !subjects.is_empty() || !tags.is_empty();
        named.then(|| Self { subjects: subjects.to_vec(), tags: tags.to_vec() })
    }

    pub fn for_subject(subject: impl Into<String>) -> Self {
        Self { subjects: vec![subject.into()], tags: Vec::new() }
    }

    /// The subjects to match. Empty means that endpoints match with any subject or none.
    pub fn subjects(&self) -> &[String] {
        &self.subjects
    }

    /// The tags to match. Empty means that endpoints match with any tags or none.
    pub fn tags(&self) -> &[String] {
        &self.tags
    }

    pub fn matches(&self, endpoint: &Endpoint) -> bool {
        let is_named = |subject: &String| self.subjects.contains(subject);
        (self.subjects.is_empty() || endpoint.subject.as_ref().is_some_and(is_named))
            && (self.tags.is_empty() || endpoint.tags.iter().any(|tag| self.tags.contains(tag)))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct MatchedEndpoints {
    /// The endpoints, by id. There may be fewer than `limit` although more follow: see `next`.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// The id after which the next page begins; `None` if this is the last page.
    pub next: Option<EndpointId>,
}
