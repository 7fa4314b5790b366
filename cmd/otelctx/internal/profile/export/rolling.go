// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Rolling names the files of a recording that writes one for each period: what the user has named, with the time
// at which the period began before the ending, as in profile-20261125T182544.123456Z.pb.gz.
type Rolling struct {
	path, ending string
	keep         int
}

// stamp is the time in the name of a file. Names sort as times do.
const stamp = "20060102T150405.000000Z"

// NewRolling returns the names of files by path. Of the files only the newest are kept, so many as keep says; 0 keeps
// all.
func NewRolling(path string, keep int) Rolling {
	ending := filepath.Ext(path)
	for _, e := range endings {
		if name := strings.ToLower(path); strings.HasSuffix(name, e.ending) && len(e.ending) > len(ending) {
			ending = path[len(path)-len(e.ending):]
		}
	}
	return Rolling{path: strings.TrimSuffix(path, ending), ending: ending, keep: keep}
}

// Path returns the name of the file of a period.
func (r Rolling) Path(began time.Time) string {
	return r.path + "-" + began.UTC().Format(stamp) + r.ending
}

// Prune removes the oldest files, those of earlier recordings included. It removes only regular files of
// this user.
func (r Rolling) Prune() error {
	if r.keep == 0 {
		return nil
	}
	dir := filepath.Dir(r.path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var all []string
	for _, e := range entries {
		at, named := strings.CutPrefix(e.Name(), filepath.Base(r.path)+"-")
		at, ends := strings.CutSuffix(at, r.ending)
		_, err := time.Parse(stamp, at)
		if !named || !ends || err != nil || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // It has been removed.
		}
		if owner, ok := ownerOf(info); ok && owner != os.Geteuid() {
			continue
		}
		all = append(all, filepath.Join(dir, e.Name()))
	}
	slices.Sort(all)
	var errs []error
	for _, old := range all[:max(0, len(all)-r.keep)] {
		errs = append(errs, os.Remove(old))
	}
	return errors.Join(errs...)
}
