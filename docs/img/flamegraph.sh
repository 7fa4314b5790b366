#!/bin/sh
# Copyright The otelctx Authors
# SPDX-License-Identifier: Apache-2.0

# Makes two pictures of the quickstart example: page.png shows the page that otelctx record --output
# page.html writes, and flamegraph.png shows the trace that used the most CPU time, in pprof. It
# records the example, so it needs root, chromium, and the programs that make build makes.
set -eu
cd "$(dirname "$0")/../.."
port=8611
work=$(mktemp -d)
children=
trap 'kill $children; rm -r "$work"' EXIT

bin/quickstart -serve >"$work/said" &
service=$!
children=$service
until grep -qs ^url= "$work/said"; do sleep 0.1; done

picture() { # FILE URL
	chromium --headless --no-sandbox --hide-scrollbars --force-device-scale-factor=2 --window-size=1000,560 \
		--virtual-time-budget=5000 --user-data-dir="$work/browser" --screenshot="$work/picture.png" "$2" 2>"$work/chromium"
	cp "$work/picture.png" "docs/img/$1"
}

bin/otelctx record "$service" --freq 997 --duration 10s --output "$work/page.html" >"$work/summary"
picture page.png "file://$work/page.html"

bin/otelctx record "$service" --freq 9973 --duration 10s --top 1 --group-by trace --output "$work/profile.pb.gz" >"$work/spans"
trace=$(awk '/^Top traces/ { here = 1 } here && NF == 4 && $1 != "CPU" { print $NF; exit }' "$work/spans")

# go tool would leave pprof running when it is killed.
"$(go tool -n pprof)" -no_browser -http "localhost:$port" -tagfocus "trace_id=$trace" "$work/profile.pb.gz" 2>"$work/log" &
children="$children $!"
until grep -qs ^Serving "$work/log"; do sleep 0.1; done
picture flamegraph.png "http://localhost:$port/ui/flamegraph"
