//! The tiers: how urgent a message is.

use crate::named::named;

named! {
    /// The three tiers of G1, most urgent first.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Tier {
        /// A person is waiting for it, such as for a one-time code.
        Transactional "transactional",
        /// The default.
        #[default]
        Promotional "promotional",
        /// May wait for an off-peak window.
        Engagement "engagement",
    }
}

impl Tier {
    /// The tier's index in [`Tier::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Parses a tier as the API takes it: `1`–`3` or a name.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |tier: Self| ["1", "2", "3"][tier.index()];
        Self::ALL.into_iter().find(|tier| text == number(*tier) || text == tier.name())
    }
}
