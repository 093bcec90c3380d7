//! Names of instances, as the calls of `/dev/skerry` have them.

use alloc::format;
use core::fmt;

use abi::dev;

/// Name of an instance: text, padded with zeroes, not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(pub(crate) [u8; dev::LABEL_BYTES]);

impl Label {
    /// The name in a field of a call; `None` if it is empty or not text. What stands behind its end
    /// is dropped, so that equal names are equal fields.
    pub(crate) fn new(field: &[u8; dev::LABEL_BYTES]) -> Option<Self> {
        let text = dev::text(field).filter(|text| !text.is_empty())?;
        dev::field(text).map(Self)
    }

    /// A name for the instance of that number, which has lost its own.
    pub(crate) fn numbered(id: u32) -> Self {
        let field = dev::field(&format!("instance-{id}"));
        Self(field.unwrap_or([b'?'; dev::LABEL_BYTES]))
    }

    /// The name as text.
    pub(crate) fn as_str(&self) -> &str {
        dev::text(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_text_and_ends_at_the_first_zero() {
        let mut field = [0; dev::LABEL_BYTES];
        assert_eq!(Label::new(&field), None);
        field[..3].copy_from_slice(b"web");
        let web = Label::new(&field).unwrap();
        field[10] = b'x';
        assert_eq!(Label::new(&field), Some(web));
        assert_eq!(web.as_str(), "web");
        assert_eq!(
            Label::new(&[b'x'; dev::LABEL_BYTES]),
            None,
            "no room for a zero"
        );
        field[0] = 0xff;
        assert_eq!(Label::new(&field), None);
    }
}
