// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command pgo uses the CPU until its input ends, in a function that the compiler inlines only if a
// profile says that the function is hot.
package main

import (
	"fmt"
	"io"
	"os"
)

//go:noinline
func rotate(v uint64, n int) uint64 { return v<<(n&63) | v>>(64-n&63) }

// mix is too large for the compiler to inline without a profile.
func mix(state uint64, text string) uint64 {
	for i, c := range []byte(text) {
		switch {
		case c < '0':
			state += rotate(uint64(c), i)
		case c < 'A':
			state -= rotate(uint64(c)*3, i+1)
		case c < 'a':
			state ^= rotate(uint64(c)*5, i+2)
		default:
			state = rotate(state*7, i) + uint64(c)
		}
	}
	return state
}

func main() {
	fmt.Println("burning")
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(done)
	}()
	var state uint64
	for {
		select {
		case <-done:
			fmt.Println(state)
			return
		default:
		}
		for range 1000 {
			state = mix(state, "some Text of 31 letters, or 32")
		}
	}
}
