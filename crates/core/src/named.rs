//! Enums whose variants have names in the API.

/// Declares an enum, the list of its variants and their names, so that each variant is written once.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $type:ident { $($(#[$doc:meta])* $variant:ident $name:literal,)* }) => {
        $(#[$meta])*
        $vis enum $type {
            $($(#[$doc])* $variant,)*
        }

        impl $type {
            /// Every variant, in the order of their declaration.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The variant's name in the API.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

pub(crate) use named;
