//! Endpoints chosen by whose they are and by their tags.

use std::sync::Arc;

use posthaste_core::id::EndpointId;

use super::Endpoint;

/// Which endpoints of a tenant are meant: those that belong to one of the subjects, if any are named, and carry one
/// of the tags, if any are named. At least one of either is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSelector {
    subjects: Vec<String>,
    tags: Vec<String>,
}

impl EndpointSelector {
    /// `None` when neither subjects nor tags are named: that selects nothing in particular.
    pub fn new(subjects: &[String], tags: &[String]) -> Option<Self> {
        let named = !subjects.is_empty() || !tags.is_empty();
        named.then(|| Self { subjects: subjects.to_vec(), tags: tags.to_vec() })
    }

    /// The endpoints of one subject.
    pub fn of_subject(subject: impl Into<String>) -> Self {
        Self { subjects: vec![subject.into()], tags: Vec::new() }
    }

    /// Empty when the endpoints of every subject are meant, and those of none.
    pub fn subjects(&self) -> &[String] {
        &self.subjects
    }

    /// Empty when endpoints are meant whatever their tags.
    pub fn tags(&self) -> &[String] {
        &self.tags
    }

    /// Whether it means this endpoint.
    pub fn matches(&self, endpoint: &Endpoint) -> bool {
        let is_named = |subject: &String| self.subjects.contains(subject);
        (self.subjects.is_empty() || endpoint.subject.as_ref().is_some_and(is_named))
            && (self.tags.is_empty() || endpoint.tags.iter().any(|tag| self.tags.contains(tag)))
    }
}

/// A page of the endpoints that a selector means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MatchedEndpoints {
    /// By id. Fewer than were asked for says nothing of whether there are more.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// The next page begins behind this one; `None` behind the last page.
    pub next: Option<EndpointId>,
}
