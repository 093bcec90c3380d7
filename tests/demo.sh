# What `make run` shows: run by busybox's sh inside a machine, on the supervisor.

say() { printf '\n# %s\n' "$*"; }
show() {
    printf '$ %s\n' "$*"
    eval "$*"
}

say 'Every processor but the first is parked, and the memory is free:'
show skerry resources

say 'Two instances beside the supervisor, each a kernel of its own on processors and memory of its own:'
show "skerry run -d --name script --cpus 1 --mem 64M -- sh -c 'for i in 1 2 3 4; do echo tick \$i; sleep 1; done; echo panic > /proc/skerry/fault'"
show "skerry run -d --name compute --cpus 2 --mem 128M -- sh -c 'n=0; while :; do seq 1 5000 | sha256sum; n=\$((n + 1)); echo round \$n; done'"
show skerry ls
sleep 2
show 'skerry logs compute | tail -n 2'

say 'The script ends by making its kernel panic. The other instance does not notice:'
sleep 5
show skerry ls
show 'skerry logs script'
show 'skerry logs --kernel script | tail -n 12'
show 'skerry logs compute | tail -n 1'

say 'Everything is given back:'
show 'skerry stop --force compute'
show 'skerry rm script compute'
show skerry resources
