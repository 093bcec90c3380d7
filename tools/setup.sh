#!/bin/sh
# Makes this machine ready to build, run and test Skerry. `make setup` runs it; running it again does nothing.
# `tools/setup.sh linux` installs what building a Linux to compare with needs, besides; `tools/setup.sh miri` fetches the
# source of the standard library that `cargo xtask miri` needs where rustup has none.
#
# It is the only script of the repository with logic in it: everything else is Rust (xtask/), but Cargo may not exist yet.
#
#   1. What is missing of the tools is installed from Debian: as root, or through sudo.
#   2. The pinned Rust comes from rustup where rustup can provide it; elsewhere a rustup-shaped directory, .toolchain/, is made
#      from Debian's packages of that same compiler, with `core` and `alloc` compiled for bare metal once.
#
# Where it cannot install, it prints one line for each missing piece and fails.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
version=$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$root/rust-toolchain.toml")
target=x86_64-unknown-none
purpose=${1-}
toolchain=$root/.toolchain
PATH=$PATH:/usr/sbin:/sbin
export PATH

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- what must be there -----------------------------------------------------------------------------------------------

qemu_is_new() {
    have qemu-system-x86_64 || return 1
    major=$(qemu-system-x86_64 --version | sed -n '1s/.*version \([0-9]*\)\..*/\1/p')
    [ "${major:-0}" -ge 10 ]
}

busybox_is_static() {
    [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1
}

linux_is_there() {
    for image in /boot/vmlinuz-*; do
        [ -r "$image" ] && return 0
    done
    return 1
}

# need PACKAGE WHAT TEST…: notes what is missing, and the package that has it.
missing='' packages=''
need() {
    package=$1 what=$2
    shift 2
    "$@" && return
    missing="$missing$what (package $package)
"
    packages="$packages $package"
}

need_tools() {
    missing='' packages=''
    need gcc 'a linker for host programs, cc' have cc
    need libc6-dev 'the static C library, libc.a' test -e /usr/lib/x86_64-linux-gnu/libc.a
    need ca-certificates 'certificates, for Cargo' test -e /etc/ssl/certs/ca-certificates.crt
    need git 'git' have git
    need util-linux 'setpriv' have setpriv
    need qemu-system-x86 'QEMU 10 or later, qemu-system-x86_64' qemu_is_new
    need busybox-static 'the static busybox, /bin/busybox' busybox_is_static
    need grub-common 'grub-mkrescue, for the ISO image' have grub-mkrescue
    need grub-pc-bin "GRUB's BIOS modules" test -d /usr/lib/grub/i386-pc
    need grub-efi-amd64-bin "GRUB's UEFI modules" test -d /usr/lib/grub/x86_64-efi
    need xorriso 'xorriso, for the ISO image' have xorriso
    need mtools 'mformat, for the ISO image' have mformat
    need e2fsprogs "mkfs.ext4, debugfs and e2fsck, for the tests of ext4" have mkfs.ext4
    need ovmf 'UEFI firmware, OVMF.fd' test -e /usr/share/ovmf/OVMF.fd
    need tshark 'tshark, for the tests of the network' have tshark
    need golang-go 'go, for a test program' have go
    need linux-image-amd64 'a Linux kernel to compare with, /boot/vmlinuz-*' linux_is_there
    [ "$purpose" = linux ] || return 0
    need linux-source-6.12 "Linux's source, /usr/src/linux-source-6.12.tar.xz" test -e /usr/src/linux-source-6.12.tar.xz
    need make 'make' have make
    need xz-utils 'xz' have xz
    need flex 'flex, for Linux' have flex
    need bison 'bison, for Linux' have bison
    need bc 'bc, for Linux' have bc
    need libelf-dev 'libelf, for Linux' test -e /usr/include/libelf.h
}

# --- Debian's packages -------------------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

can_install() {
    have apt-get && { [ "$(id -u)" = 0 ] || have sudo; }
}

updated=no
update_once() {
    [ $updated = yes ] && return
    say 'updating the package lists'
    as_root apt-get -qq update
    updated=yes
}

codename() {
    sed -n 's/^VERSION_CODENAME=//p' /etc/os-release
}

# candidate PACKAGE: the version apt would install, without the epoch.
candidate() {
    apt-cache policy "$1" | sed -n 's/^  Candidate: \(.*:\)\{0,1\}//p'
}

# add_suite SUITE SUFFIX: adds a Debian suite by its relation to the main archive this machine uses already. The name of the
# archive is the machine's own; SUFFIX is appended to its path.
add_suite() {
    archive=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Identifier: Packages' |
        sed -n "s|^$(codename) main ||p" | head -n 1)
    [ -n "$archive" ] || die "no source of Debian's $(codename) among this machine's package sources, so $1 cannot be added"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    say "adding the suite $1 (/etc/apt/sources.list.d/$1.sources)"
    {
        printf 'Types: deb\nURIs: %s%s\nSuites: %s\nComponents: main\n' "${archive%/}" "$2" "$1"
        if [ -e $keyring ]; then printf 'Signed-By: %s\n' $keyring; fi
    } | as_root tee "/etc/apt/sources.list.d/$1.sources" >/dev/null
    updated=no
    update_once
}

install_packages() {
    say "installing: $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@" >/dev/null
}

# Debian 12 itself has QEMU 7; its backports have 10.
install_qemu() {
    update_once
    case $(candidate qemu-system-x86) in
        [0-9].*) ;;
        *) install_packages qemu-system-x86; return ;;
    esac
    suite=$(codename)-backports
    apt-cache policy qemu-system-x86 | grep -q "$suite/" || add_suite "$suite" ''
    install_packages -t "$suite" qemu-system-x86 qemu-system-common qemu-system-data
}

install_tools() {
    need_tools
    [ -n "$missing" ] || return 0
    if ! can_install; then
        printf '%s' "$missing" | while read -r line; do say "missing: $line"; done
        die 'nothing was installed: that needs apt-get, and root or sudo'
    fi
    others=''
    for package in $packages; do
        case $package in
            qemu-system-x86) install_qemu ;;
            *) others="$others $package" ;;
        esac
    done
    if [ -n "$others" ]; then
        update_once
        # shellcheck disable=SC2086 # a list of words
        install_packages $others
    fi
    need_tools
    [ -z "$missing" ] && return 0
    printf '%s' "$missing" | while read -r line; do say "still missing: $line"; done
    exit 1
}

# --- Rust --------------------------------------------------------------------------------------------------------------

rustup_has_it() {
    have rustup && [ -d "$(RUSTUP_TOOLCHAIN=$version rustc --print sysroot 2>/dev/null)/lib/rustlib/$target/lib" ]
}

rustup_gets_it() {
    have rustup || return 1
    say "asking rustup for Rust $version"
    rustup toolchain install "$version" --profile minimal --component rustfmt,clippy --target $target >/dev/null 2>&1 &&
        rustup_has_it
}

debian_rust_is_there() {
    [ -x /usr/bin/cargo ] && [ -x /usr/bin/cargo-clippy ] && [ -x /usr/bin/rustfmt ] && have lld &&
        [ -d /usr/lib/rustlib/src ] && [ "$(/usr/bin/rustc --version 2>/dev/null | cut -d' ' -f2)" = "$version" ]
}

install_debian_rust() {
    wanted='rustc-web cargo-web rust-web-src rust-web-clippy rustfmt-web lld'
    can_install || die "missing: Rust $version with the target $target (rustup has none; packages $wanted)"
    update_once
    case $(candidate rustc-web) in
        "$version"[+-]*) ;;
        # Debian keeps it in the security suite, which every installation should have, but not every image does.
        *) apt-cache policy rustc-web | grep -q "$(codename)-security/" || add_suite "$(codename)-security" '-security' ;;
    esac
    # shellcheck disable=SC2086 # a list of words
    install_packages $wanted
    debian_rust_is_there || die "missing: Rust $version (the package rustc-web here is $(candidate rustc-web))"
}

# A directory like one of rustup's, out of Debian's compiler: its library for the host, and for bare metal the libraries that
# are compiled here from Debian's copy of their source.
make_toolchain() {
    host=$(/usr/bin/rustc -vV | sed -n 's/^host: //p')
    say "compiling core and alloc for $target (once, about a minute)"
    new=$root/.toolchain.new
    rm -rf "$new"
    mkdir -p "$new/bin" "$new/build/src" "$new/lib/rustlib/$target/lib" "$new/lib/rustlib/$host/bin"
    printf '[package]\nname = "libraries"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n' >"$new/build/Cargo.toml"
    echo '#![no_std]' >"$new/build/src/lib.rs"
    # An unstable option of Cargo compiles the libraries; nothing of Skerry is built that way. Bitcode is for link-time
    # optimisation.
    (
        cd "$new/build"
        unset CARGO_TARGET_DIR RUSTUP_TOOLCHAIN CARGO_BUILD_TARGET CARGO_ENCODED_RUSTFLAGS
        RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc RUSTFLAGS=-Cembed-bitcode=yes CARGO_TARGET_DIR=$new/build/target \
            /usr/bin/cargo build --quiet --release --target $target \
            -Zbuild-std=core,alloc,compiler_builtins -Zbuild-std-features=compiler-builtins-mem
    ) || die "cannot compile the libraries for $target from Debian's rust-web-src"
    for crate in core alloc compiler_builtins; do
        cp "$new/build/target/$target/release/deps/lib$crate"-*.rlib "$new/lib/rustlib/$target/lib/"
    done
    rm -rf "$new/build"
    ln -s "/usr/lib/rustlib/$host/lib" "$new/lib/rustlib/$host/lib"
    ln -s /usr/lib/rustlib/src "$new/lib/rustlib/src"
    ln -s "$(command -v lld)" "$new/lib/rustlib/$host/bin/rust-lld"
    for tool in cargo cargo-clippy cargo-fmt rustfmt; do
        ln -s "/usr/bin/$tool" "$new/bin/$tool"
    done
    for tool in rustc rustdoc; do
        printf '#!/bin/sh\nexec /usr/bin/%s --sysroot "%s" "$@"\n' $tool "$toolchain" >"$new/bin/$tool"
    done
    printf '#!/bin/sh\nSYSROOT="%s" exec /usr/bin/clippy-driver "$@"\n' "$toolchain" >"$new/bin/clippy-driver"
    chmod +x "$new/bin/rustc" "$new/bin/rustdoc" "$new/bin/clippy-driver"
    toolchain_stamp >"$new/made-from"
    # What was compiled against other libraries cannot be mixed with these.
    rm -rf "$toolchain" "$root/target"
    mv "$new" "$toolchain"
}

# What a toolchain directory depends on: the compiler, the place, and how it is made (to be counted up when that changes).
toolchain_stamp() {
    /usr/bin/rustc -vV
    echo "$toolchain"
    echo 'layout 1'
}

install_rust() {
    rustup_has_it && return
    if debian_rust_is_there && [ -e "$toolchain/made-from" ] && [ "$(toolchain_stamp)" = "$(cat "$toolchain/made-from")" ]; then
        return
    fi
    if rustup_gets_it; then
        rm -rf "$toolchain"
        return
    fi
    debian_rust_is_there || install_debian_rust
    make_toolchain
}

# --- Miri --------------------------------------------------------------------------------------------------------------

# The source of a nightly's standard library: Debian's later suites have that of the release which the nightly became. They
# are looked into with lists of their own, so nothing of this machine changes.
fetch_miri_source() {
    have rustup || die 'rustup is missing: without it there is no nightly Rust with Miri'
    nightly=$(rustup run nightly rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9]*\.[0-9]*\)\..*/\1/p')
    [ -n "$nightly" ] || die 'rustup has no toolchain named nightly'
    source=$root/target/miri-src
    [ "$(cat "$source/version" 2>/dev/null)" = "$nightly" ] && return
    archive=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Identifier: Packages' |
        sed -n "s|^$(codename) main ||p" | head -n 1)
    [ -n "$archive" ] || die "no source of Debian's $(codename) among this machine's package sources"
    rm -rf "$source"
    mkdir -p "$source/lists/partial" "$source/cache/archives/partial"
    for suite in testing unstable experimental; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main"
    done >"$source/sources.list"
    apt() {
        tool=$1
        shift
        "$tool" -o "Dir::Etc::SourceList=$source/sources.list" -o Dir::Etc::SourceParts=- \
            -o "Dir::State::Lists=$source/lists" -o "Dir::Cache=$source/cache" -o APT::Sandbox::User= "$@"
    }
    say "looking for the library of Rust $nightly in Debian's later suites"
    apt apt-get -qq update
    package=$(apt apt-cache madison rust-src | sed -n "s/^ *rust-src *| *\($nightly\.[^ ]*\) .*/\1/p" | head -n 1)
    [ -n "$package" ] || die "no suite of Debian has the library of Rust $nightly (package rust-src)"
    (cd "$source" && apt apt-get -qq download "rust-src=$package")
    dpkg-deb -x "$source"/rust-src_*.deb "$source/unpacked"
    mv "$source"/unpacked/usr/src/rustc-*/library "$source/library"
    rm -rf "$source/unpacked" "$source/lists" "$source/cache" "$source"/rust-src_*.deb
    echo "$nightly" >"$source/version"
}

[ "$(uname -m)" = x86_64 ] || die 'Skerry builds and runs on x86-64 only'
install_tools
install_rust
[ "$purpose" != miri ] || fetch_miri_source
