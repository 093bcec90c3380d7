# The entry points. Everything behind them is Rust: `cargo xtask help`.

# Where rustup cannot provide the pinned Rust, `make setup` makes .toolchain/, and that is used instead. (SYSROOT is for
# clippy, which cargo-clippy starts from where its own file is, past the wrapper in .toolchain/bin.)
TOOLCHAIN = if [ -x .toolchain/bin/rustc ]; then RUSTUP_TOOLCHAIN='$(CURDIR)/.toolchain'; PATH="$$RUSTUP_TOOLCHAIN/bin:$$PATH"; SYSROOT="$$RUSTUP_TOOLCHAIN"; export RUSTUP_TOOLCHAIN PATH SYSROOT; fi
XTASK = @$(TOOLCHAIN); exec cargo xtask

.PHONY: run test check iso bench linux setup env clean help

run: setup ## Boot a machine and show what Skerry does
	$(XTASK) demo

# Notes for the next build (2 GB of them) would take a fifth of the time of this one.
test: export CARGO_INCREMENTAL ?= 0
test: setup ## Check and test everything (FILTER=name for a part)
	$(XTASK) test --retries 1 $(FILTER)

check: setup ## Formatting, lints, house rules and documentation, without booting a machine
	$(XTASK) check

iso: setup ## A bootable image for BIOS and UEFI: target/skerry.iso
	$(XTASK) iso

bench: setup ## Measure, beside Linux
	$(XTASK) bench boot

linux: ## A Linux as small as it gets, for benchmarks to compare with: target/linux/bzImage
	@tools/setup.sh linux
	$(XTASK) linux

setup: ## Install what is missing
	@tools/setup.sh

env: ## Print what a shell needs so that plain `cargo` works: eval "$(make env)"
	@$(TOOLCHAIN); [ ! -x .toolchain/bin/rustc ] || printf "export RUSTUP_TOOLCHAIN='%s' PATH='%s' SYSROOT='%s'\n" "$$RUSTUP_TOOLCHAIN" "$$PATH" "$$SYSROOT"

clean: ## Remove what was built; .toolchain stays
	rm -rf target

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 8
