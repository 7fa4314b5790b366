// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package display

import "fmt"

// Bytes returns a number of bytes with a unit, as in "1.5 MiB".
func Bytes(n float64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%.0f B", n)
	}
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	n /= step
	for n >= step && len(units) > 1 {
		n, units = n/step, units[1:]
	}
	return fmt.Sprintf("%.1f %s", n, units[0])
}
