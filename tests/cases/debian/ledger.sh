#!/usr/bin/env bash
# A program as people write them in bash: it keeps a ledger of a shop's orders. It makes the orders from a seed, checks and
# files them with a pool of workers, and prints reports. What it prints depends on nothing but its arguments, so that
# `machine/shell` compares a run in an instance with one on the host.
#
# usage: ledger.sh [-n ORDERS] [-s SEED] [-w WORKERS] [-q] [NAME=VALUE…]
set -uo pipefail
shopt -s extglob nullglob
readonly PROGRAM=${0##*/}
export LC_ALL=C

declare -i orders=120 seed=7 workers=3 quiet=0
declare -A setting=([currency]=EUR [tax]=19 [threshold]=400)
declare -a customers=(ada bert cleo dora emil) fruits=("apple" "blood orange" "cherry" "date" "elderberry")
declare -A price=([apple]=35 ["blood orange"]=80 [cherry]=5 [date]=22 [elderberry]=61)

# ---- messages, errors, the end ---------------------------------------------------------------------------------------

heading() {
    local -r text=$1
    local line
    printf -v line '%*s' $((${#text} + 8)) ''
    printf '%s\n=== %s ===\n' "${line// /-}" "${text^^}"
}
die() { printf '%s: %s\n' "$PROGRAM" "$*" >&2; exit 2; }

usage() {
    cat <<-END
	usage: $PROGRAM [-n ORDERS] [-s SEED] [-w WORKERS] [-q] [NAME=VALUE…]
	settings: $(printf '%s\n' "${!setting[@]}" | sort | paste -sd' ').
	END
}

work=
cleanup() {
    local -ri status=$?
    trap - EXIT
    [[ -n $work && -d $work ]] && rm -rf -- "$work"
    [[ -e ${work:-/nonexistent} ]] && echo "the directory is still there"
    ((quiet)) || echo "cleaned up, status $status"
    exit $status
}

# ---- numbers ---------------------------------------------------------------------------------------------------------

# The next number of a linear congruential generator below $1, in REPLY.
declare -i state
random_below() { ((state = (state * 1103515245 + 12345) & 0x7fffffff, REPLY = (state >> 8) % $1, 1)); }

gcd() { local -i a=$1 b=$2; while ((b)); do ((a = a % b, a ^= b, b ^= a, a ^= b)); done; REPLY=$a; }

# Cents as an amount with separators: 1234567 is 12.345,67.
amount() {
    local -i cents=$1
    local whole=$((cents / 100)) grouped=''
    while ((${#whole} > 3)); do grouped=.${whole: -3}$grouped whole=${whole:0: -3}; done
    printf -v REPLY '%s%s,%02d' "$whole" "$grouped" $((cents % 100))
}

primes() {
    local -i n=$1 i j
    local -a composite=()
    for ((i = 2; i <= n; i++)); do
        [[ -v composite[i] ]] && continue
        printf '%d ' "$i"
        for ((j = i * i; j <= n; j += i)); do composite[j]=1; done
    done
    echo
}

# A number in base $2, digits by expansion.
in_base() {
    local -i n=$1 base=$2
    local -r digits=0123456789abcdefghijklmnopqrstuvwxyz
    REPLY=
    while :; do REPLY=${digits:n % base:1}$REPLY; ((n /= base)) || break; done
}

# ---- orders ----------------------------------------------------------------------------------------------------------

# One line per order: number|customer|fruit|how many. Every 17th is wrong in one of four ways.
make_orders() {
    local -i i
    local customer fruit count
    for ((i = 1; i <= orders; i++)); do
        random_below ${#customers[@]}; customer=${customers[REPLY]}
        random_below ${#fruits[@]}; fruit=${fruits[REPLY]}
        random_below 40; count=$((REPLY + 1))
        case $((i % 17)):$((i % 4)) in
            0:0) count=-$count ;;
            0:1) fruit=stone ;;
            0:2) customer=${customer}/../x ;;
            0:3) printf '%d|%s\n' $i "$customer"; continue ;;
        esac
        printf '%d|%s|%s|%s\n' $i "$customer" "$fruit" "$count"
    done
}

# Succeeds, or says in REPLY what is wrong with an order.
check_order() {
    local -r pattern='^([0-9]+)\|([a-z]+)\|([a-z ]+)\|(-?[0-9]+)$'
    local IFS='|'
    local -a fields=($1)
    REPLY=
    if ((${#fields[@]} != 4)); then REPLY="has ${#fields[@]} fields"; return 1; fi
    [[ $1 =~ $pattern ]] || { REPLY="is malformed"; return 1; }
    [[ ${price[${BASH_REMATCH[3]}]+there} ]] || { REPLY="is for ${BASH_REMATCH[3]@Q}"; return 1; }
    ((BASH_REMATCH[4] > 0)) || { REPLY="is for ${BASH_REMATCH[4]} pieces"; return 1; }
}

# A worker takes every $workers-th order and files it by customer. It ends with how many it refused.
worker() {
    local -ri which=$1
    local -i refused=0 number=0
    local line
    trap 'echo "worker $which was told to stop" >> "$work/stopped"; exit 99' TERM
    while IFS= read -r line || [[ -n $line ]]; do
        ((number++ % workers == which)) || continue
        if check_order "$line"; then
            local customer=${line#*|}
            customer=${customer%%|*}
            printf '%s\n' "$line" >> "$work/filed/$customer.$which"
        else
            printf '%05d order %d %s\n' "${line%%|*}" "${line%%|*}" "$REPLY" >> "$work/refused.$which"
            ((++refused))
        fi
    done < "$work/orders"
    return $refused
}

process_orders() {
    local -A who=()
    local -i i refused=0
    local pid
    for ((i = 0; i < workers; i++)); do
        worker $i &
        who[$!]=$i
    done
    while ((${#who[@]})); do
        wait -n -p pid; refused+=$?
        unset "who[$pid]"
    done
    echo "$refused refused, $(cat "$work"/filed/* | wc -l) filed for $(printf '%s\n' "$work"/filed/* | sed 's|.*/||; s|\..*||' | sort -u | wc -l) customers"
    sort -n "$work"/refused.+([0-9]) | cut -c7-
}

# ---- reports ---------------------------------------------------------------------------------------------------------

declare -A sum=() pieces=()
report_customers() {
    local customer line fruit count
    local -i total=0
    for customer in "${customers[@]}"; do
        while IFS='|' read -r _ _ fruit count; do
            ((sum[$customer] += price[$fruit] * count, pieces[$fruit] += count))
        done < <(cat "$work/filed/$customer".*)
    done
    while read -r line; do
        customer=${line#* }
        amount "${line%% *}"
        printf '%-8s %12s %s%s\n' "${customer^}" "$REPLY" "${setting[currency]}" \
            "$( ((${line%% *} > setting[threshold] * 100)) && echo ' *')"
        total+=${line%% *}
    done < <(for customer in "${!sum[@]}"; do echo "${sum[$customer]} $customer"; done | sort -rn)
    amount $((total * (100 + setting[tax]) / 100))
    echo "with ${setting[tax]} % tax: $REPLY ${setting[currency]}"
}

report_fruits() {
    local fruit
    local -i most=1 length
    for fruit in "${!pieces[@]}"; do ((most = pieces[$fruit] > most ? pieces[$fruit] : most)); done
    for fruit in "${fruits[@]}"; do
        ((length = ${pieces[$fruit]:-0} * 30 / most))
        printf '%-14s|%-30s| %4d\n' "${fruit/ /_}" "$(printf '%*s' $length '' | tr ' ' '#')" "${pieces[$fruit]:-0}"
    done
}

# The same sums by a coprocess, one question at a time.
recount() {
    local customer answer pid
    coproc SUMS {
        declare -i sum=0
        while IFS='|' read -r number customer fruit count; do
            if [[ $number == '?' ]]; then echo $sum; sum=0; else sum+=price[$fruit]*count; fi
        done
    }
    pid=$SUMS_PID
    for customer in "${customers[@]}"; do
        cat "$work/filed/$customer".* >&"${SUMS[1]}"
        echo '?' >&"${SUMS[1]}"
        read -r answer <&"${SUMS[0]}"
        [[ $answer -eq ${sum[$customer]} ]] && echo "$customer: agreed" || echo "$customer: $answer is not ${sum[$customer]}"
    done
    exec {SUMS[1]}>&-
    wait "$pid"
    echo "the coprocess ended with $?"
}

# ---- what else a shell is asked to do --------------------------------------------------------------------------------

strings() {
    local path=/srv/shop/archive.2026.tar.gz text='  the quick  brown fox  '
    echo "${path##*/} ${path%%.*} ${path%.*} ${path/#\/srv/~} ${path//[aeiou]/_} ${#path} ${path:5:4} ${path: -6}"
    local -a words=($text)
    echo "${#words[@]}: ${words[*]^} ${words[@]:1:2} ${words[-1]^^} ${words[*]/o/0}"
    text=${text##+( )}; text=${text%%+( )}
    printf '[%s] [%q] [%-7.3s] [%+05d] [%x] [%o] [%e] [%b]\n' "$text" 'a b$c' shorten 42 255 8 12345.678 'tab\tend'
    local unset_one empty=
    echo "${unset_one-default} ${empty:-default} ${empty-kept}${empty:+never}${text:+there} ${!SUM_NOTHING*}"
    case $path in
        /srv/*) echo -n "served, " ;;&
        *.@(gz|xz|zst)) echo -n "packed, " ;&
        */never) echo "fallen through" ;;
        *) echo never ;;
    esac
    local -n alias=setting
    alias[note]="a ${alias[currency],,} note"
    echo "${setting[note]} ${setting[note]@U} $(printf '%s,' {a..e..2}{1,2} x{08..10})"
}

traps() {
    local -a seen=()
    trap 'seen+=(USR1)' USR1
    trap 'seen+=(USR2)' USR2
    kill -USR1 $BASHPID; kill -USR2 $BASHPID; kill -USR1 $BASHPID
    echo "signals: ${seen[*]}"
    trap - USR1 USR2
    (trap 'echo "in the subshell: $?"' EXIT; exit 5)
    echo "after it: $?"
    (trap 'echo "error in line"; exit 6' ERR; set -E; fails() { false; }; fails; echo never)
    echo "after that: $?"
    (trap '' TERM; kill -TERM $BASHPID; echo "TERM is ignored")
    { (kill -TERM $BASHPID; echo never); echo "killed: $?"; } 2>/dev/null
}

jobs_under_control() {
    set -m
    sleep 1000 & local -r first=$!
    (kill -STOP $BASHPID; exit 23) & local -r second=$!
    wait $second 2>/dev/null; until [[ $(jobs -s) == *Stopped* ]]; do wait -n -f $second 2>/dev/null; done
    echo "$(jobs -r | wc -l) running, $(jobs -s | wc -l) stopped"
    [[ $(ps -o pgid= -p $first 2>/dev/null || echo $first) -eq $first ]] && echo "a group of its own"
    kill -CONT %2; wait $second; echo "the second ended with $?"
    kill %1; wait $first 2>/dev/null; echo "the first ended with $?"
    set +m
    (sleep 0.01; exit 3) | (exit 4) | true
    echo "statuses: ${PIPESTATUS[*]}"
}

plumbing() {
    exec {log}> "$work/log"
    echo "to a descriptor of its own" >&"$log"; exec {log}>&-
    cat "$work/log"
    { echo out; echo err >&2; } 2>&1 >/dev/null | sed 's/^/caught: /'
    diff <(seq 5) <(seq 5 | sed s/3/three/); echo "diff: $?"
    # The last cat ends when the substituted process has, too.
    { seq 100 | tee >(awk '{s += $1} END {print "tee: " s}') > /dev/null; } | cat
    local -a lines; mapfile -t -s 1 -n 2 lines < <(printf '%s\n' one two three four); echo "mapfile: ${lines[*]}"
    cat <<'VERBATIM'; cat <<<"and a string: $((0x1f + 2#101 + 8#17)) $((7 ** 3 % 5 << 2 | 1)) $((-7 / 2)) $((1 ? 2 : 3))"
$nothing is `expanded` here
VERBATIM
    (ulimit -n 17; exec {fd}</dev/null; echo "descriptors: $(ulimit -n) $((fd >= 10))")
    ((umask=$(umask))) ; (umask 027; : > "$work/f"; stat -c %a "$work/f")
    local IFS=:; set -- a b "c d"; echo "$*" "$#" "${@:2}"
    until read -r -t 0 < /dev/null; do break; done; read -r -d '' -n 3 abc <<< abcdef; echo "$abc"
}

# ---- the program -----------------------------------------------------------------------------------------------------

while getopts ':n:s:w:qh' option; do
    case $option in
        n) orders=$OPTARG ;;
        s) seed=$OPTARG ;;
        w) workers=$OPTARG ;;
        q) quiet=1 ;;
        h) usage; exit 0 ;;
        :) die "-$OPTARG needs a value" ;;
        *) die "there is no option -$OPTARG" ;;
    esac
done
shift $((OPTIND - 1))
for argument; do
    [[ $argument == +([a-z])=* && -v setting[${argument%%=*}] ]] || die "what is ${argument@Q}?"
    setting[${argument%%=*}]=${argument#*=}
done
((orders > 0 && workers > 0)) || die "there must be orders and workers"

trap cleanup EXIT
work=$(mktemp -d) || die "no directory to work in"
mkdir "$work/filed"
state=$seed
make_orders > "$work/orders"
heading "orders"; process_orders
heading "customers"; report_customers
heading "fruits"; report_fruits
heading "recounted"; recount
heading "numbers"; primes 100; gcd 1071 462; echo "gcd $REPLY"
for base in 2 16 36; do in_base 1679615 $base; echo "base $base: $REPLY, back: $(($base#$REPLY))"; done
heading "strings"; strings
heading "traps"; traps
heading "jobs"; jobs_under_control
heading "plumbing"; plumbing
((quiet)) || sha256sum < "$work/orders"
