//! Conditional compilation: which parts of the source `#[cfg(…)]` leaves, as far as the tree uses
//! it.

use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Lit, Meta, Token};

/// Target of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// A kernel.
    Kernel,
    /// Tests on the host.
    Host,
}

/// A setting in which conditions are looked at.
#[derive(Clone, Copy)]
struct View {
    test: bool,
    bare: bool,
}

impl Build {
    /// Whether what has these attributes is compiled, and is not there for tests alone.
    pub fn compiles(self, attributes: &[Attribute]) -> bool {
        let holds = |test, bare| {
            let conditions = attributes
                .iter()
                .filter(|attribute| attribute.path().is_ident("cfg"));
            conditions
                .filter_map(|attribute| attribute.parse_args::<Meta>().ok())
                .all(|meta| View { test, bare }.holds(&meta))
        };
        let tested = attributes
            .iter()
            .any(|attribute| attribute.path().is_ident("test"));
        match self {
            Self::Kernel => !tested && holds(false, true),
            Self::Host => {
                !tested && holds(true, false) && (holds(false, false) || holds(false, true))
            }
        }
    }
}

impl View {
    fn holds(self, condition: &Meta) -> bool {
        let parts = |list: &syn::MetaList| {
            list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                .map(Vec::from_iter)
                .unwrap_or_default()
        };
        match condition {
            Meta::Path(path) => {
                path.is_ident("test") && self.test || path.is_ident("unix") && !self.bare
            }
            Meta::NameValue(pair) => {
                let Expr::Lit(ExprLit {
                    lit: Lit::Str(value),
                    ..
                }) = &pair.value
                else {
                    return false;
                };
                match value.value().as_str() {
                    "none" => pair.path.is_ident("target_os") && self.bare,
                    "linux" => pair.path.is_ident("target_os") && !self.bare,
                    "x86_64" => pair.path.is_ident("target_arch"),
                    _ => false,
                }
            }
            Meta::List(list) if list.path.is_ident("not") => {
                parts(list).iter().all(|part| !self.holds(part))
            }
            Meta::List(list) if list.path.is_ident("all") => {
                parts(list).iter().all(|part| self.holds(part))
            }
            Meta::List(list) if list.path.is_ident("any") => {
                parts(list).iter().any(|part| self.holds(part))
            }
            Meta::List(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_tests_see_is_left_out() {
        let cases = [
            ("#[cfg(test)]", false, false),
            ("#[test]", false, false),
            ("#[cfg(loom)]", false, false),
            ("#[cfg(not(loom))]", true, true),
            ("#[cfg(target_os = \"none\")]", true, false),
            ("#[cfg(not(target_os = \"none\"))]", false, true),
            ("#[cfg(any(test, target_os = \"none\"))]", true, true),
            ("#[cfg(all(test, not(loom)))]", false, false),
            ("#[inline]", true, true),
        ];
        for (attribute, kernel, host) in cases {
            let item: syn::ItemFn =
                syn::parse_str(&format!("{attribute} fn f() {{}}")).expect("it is Rust");
            assert_eq!(
                (
                    Build::Kernel.compiles(&item.attrs),
                    Build::Host.compiles(&item.attrs)
                ),
                (kernel, host),
                "{attribute}"
            );
        }
    }
}
