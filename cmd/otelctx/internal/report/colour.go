// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

// Parameters of ECMA-48's SGR sequence, which changes colours on terminals.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	yellow = "33"
)

// heat returns the colour of a row with part of a total of whole samples, or "" for no colour.
func heat(part, whole uint64) string {
	const hot, warm = 10, 50 // A row is hot from 1/hot of the whole, and warm from 1/warm.
	switch {
	case part*hot >= whole:
		return red
	case part*warm >= whole:
		return yellow
	default:
		return ""
	}
}

func (s *summary) bold(text string) string { return s.colour(bold, text) }

// colour returns text in a colour if the output has colours. text must not contain colours itself.
func (s *summary) colour(parameter, text string) string {
	if !s.colours || parameter == "" {
		return text
	}
	return "\x1b[" + parameter + "m" + text + "\x1b[0m"
}
