# Makes `game`: two shells that pass a line to and fro over named pipes, sixty times.
mkfifo there back
cat >pong <<'END'
exec <there >back
while read line; do echo $line; done
END
cat >ping <<'END'
exec >there <back
for i in $(seq 1 60); do
    echo $i
    read line
done
END
cat >game <<'END'
sh pong & sh ping
wait
END
