#!/bin/sh
# Copyright The otelctx Authors
# SPDX-License-Identifier: Apache-2.0

# Makes flamegraph.png: what one request to the quickstart example used the processor for.
# It records the example, as root, and has pprof show the samples of the trace that used
# most of it. make pictures runs it; it takes chromium and what make demo takes.
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
bin/otelctx record "$service" --freq 9973 --duration 10s --top 1 --output "$work/profile.pb.gz" >"$work/spans"
trace=$(awk '/^Top traces/ { here = 1 } here && $3 == "quickstart" { print $NF }' "$work/spans")

# Not by go tool, which would leave pprof behind.
"$(go tool -n pprof)" -no_browser -http "localhost:$port" -tagfocus "trace_id=$trace" "$work/profile.pb.gz" 2>"$work/log" &
children="$children $!"
until grep -qs ^Serving "$work/log"; do sleep 0.1; done
chromium --headless --no-sandbox --hide-scrollbars --force-device-scale-factor=2 --window-size=1000,560 \
	--virtual-time-budget=5000 --screenshot="$work/picture.png" "http://localhost:$port/ui/flamegraph" 2>"$work/chromium"
cp "$work/picture.png" docs/img/flamegraph.png
