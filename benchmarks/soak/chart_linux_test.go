// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// drawChart draws curves to an SVG file: above those of memory, below the others.
func drawChart(path string, curves []*curve) (err error) {
	const width, height = 8 * vg.Inch, 7 * vg.Inch
	plots := [][]*plot.Plot{{plot.New()}, {plot.New()}}
	top, bottom := plots[0][0], plots[1][0]
	top.Y.Label.Text = "MiB"
	bottom.X.Label.Text = "seconds"
	for _, p := range []*plot.Plot{top, bottom} {
		p.Y.Min = 0
		p.Legend.Left, p.Legend.Top = true, true
	}
	for i, c := range curves {
		p, scale := bottom, 1.0
		if c.unit == memory {
			p, scale = top, 1.0/mebibyte
		}
		points := make(plotter.XYs, len(c.at))
		for n := range points {
			points[n] = plotter.XY{X: c.at[n], Y: c.value[n] * scale}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(i/7)
		p.Add(line)
		p.Legend.Add(c.name, line)
	}
	// Room for the legends.
	top.Y.Max *= 1.3
	bottom.Y.Max *= 1.6
	canvas := vgsvg.New(width, height)
	tiles := draw.Tiles{Rows: 2, Cols: 1, PadY: vg.Centimeter}
	for row, aligned := range plot.Align(plots, tiles, draw.New(canvas)) {
		plots[row][0].Draw(aligned[0])
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}
