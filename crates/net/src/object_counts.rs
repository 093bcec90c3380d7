//! How much there is in the tables of this crate that stand beside the sockets.

use crate::{inet, unix};

/// Calls `each` with the name and the number of what each table holds.
pub fn object_counts(each: &mut dyn FnMut(&'static str, u64)) {
    let [sockets, references] = unix::inflight_counts();
    each("sockets_under_way", sockets);
    each("references_under_way", references);
    each("unix_names", unix::bound_name_count());
    each("unix_bytes_unreturned", unix::leaked_charge());
    each("inet_ports", inet::bound_count());
    each("connections_begun", inet::connecting_count());
}
