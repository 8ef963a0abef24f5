//! The tiers: how urgent a message is.

/// The three tiers of G1, most urgent first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// A person is waiting for it, such as for a one-time code.
    Transactional,
    /// The default.
    #[default]
    Promotional,
    /// May wait for an off-peak window.
    Engagement,
}

impl Tier {
    /// Every tier, most urgent first.
    pub const ALL: [Self; 3] = [Self::Transactional, Self::Promotional, Self::Engagement];

    /// The tier's index in [`Tier::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Parses a tier as the API takes it: `1`–`3` or a name.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "1" | "transactional" => Some(Self::Transactional),
            "2" | "promotional" => Some(Self::Promotional),
            "3" | "engagement" => Some(Self::Engagement),
            _ => None,
        }
    }

    /// The tier's name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transactional => "transactional",
            Self::Promotional => "promotional",
            Self::Engagement => "engagement",
        }
    }
}
