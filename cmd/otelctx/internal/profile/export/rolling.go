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

// Rolling generates the file names of a recording that writes one file per period: the path passed to NewRolling,
// with the start of the period inserted before the ending, as in profile-20261125T182544.123456Z.pb.gz.
type Rolling struct {
	path, ending string
	keep         int
}

// stamp is the format of the time in a file name. It makes file names sort chronologically.
const stamp = "20060102T150405.000000Z"

// NewRolling returns a Rolling that derives file names from path. keep is the number of files that Prune leaves; 0
// means all files.
func NewRolling(path string, keep int) Rolling {
	ending := filepath.Ext(path)
	for _, e := range endings {
		if name := strings.ToLower(path); strings.HasSuffix(name, e.ending) && len(e.ending) > len(ending) {
			ending = path[len(path)-len(e.ending):]
		}
	}
	return Rolling{path: strings.TrimSuffix(path, ending), ending: ending, keep: keep}
}

// Path returns the file name for the period that starts at began.
func (r Rolling) Path(began time.Time) string {
	return r.path + "-" + began.UTC().Format(stamp) + r.ending
}

// Prune removes all files with generated names except the newest ones (see NewRolling). This includes files of
// earlier recordings. It removes only regular files and, where files have owners, only files of this user.
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
		timestamp, named := strings.CutPrefix(e.Name(), filepath.Base(r.path)+"-")
		timestamp, ends := strings.CutSuffix(timestamp, r.ending)
		_, err := time.Parse(stamp, timestamp)
		if !named || !ends || err != nil || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // The file has been removed.
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
