package inspect

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

const rebuild = "rebuild the image, or undo what a derived image changed there"

// checkPaths compares type, owner and mode of every promised path and of the
// folders above it.
func checkPaths(_ context.Context, s *subject) error {
	want := map[string]fs.FileMode{overlay.Provider: 0o755, lockPath: 0o644}
	for _, p := range programs {
		want[p.path] = 0o755
	}
	for _, f := range s.Overlay {
		want[f.Path] = f.Mode
	}
	for _, e := range s.entries {
		switch path.Dir(e.Path) {
		case overlay.BundleDir:
			want[e.Path] = 0o644
		case overlay.CNIDir:
			want[e.Path] = 0o755
		}
	}
	for _, name := range slices.Collect(maps.Keys(want)) {
		for _, dir := range parents(name) {
			want[dir] = fs.ModeDir | 0o755
		}
	}
	for name, mode := range want {
		w := layerfs.Entry{Type: layerfs.Regular, Mode: mode.Perm()}
		switch {
		case mode.IsDir():
			w.Type = layerfs.Dir
		case mode&fs.ModeSymlink != 0:
			continue // the rule about wants
		}
		e, ok := s.lstat(name)
		if !ok {
			s.find(name, "missing", describe(w), rebuild)
		} else if e.Type != w.Type || e.Mode != w.Mode || e.UID != 0 || e.GID != 0 {
			s.find(name, describe(e), describe(w), rebuild)
		}
	}
	return nil
}

// checkWritable looks at every file and folder of the image. A sticky folder
// such as /tmp is open on purpose, and under /var some distributions give a
// folder to a group (/var/mail, /var/local).
func checkWritable(_ context.Context, s *subject) error {
	for _, e := range s.entries {
		if e.Type != layerfs.Regular && e.Type != layerfs.Dir || e.Type == layerfs.Dir && e.Mode&fs.ModeSticky != 0 {
			continue
		}
		open := e.Mode & 0o022
		if strings.HasPrefix(e.Path, "var/") {
			open &^= 0o020
		}
		if open != 0 {
			s.find(e.Path, describe(e), "mode "+octal(e.Mode&^0o022)+" or less", "chmod go-w /"+e.Path+" where the image is made")
		}
	}
	return nil
}

// checkPersistent looks for what is ours, or is the cluster's, under folders
// that outlive the image.
func checkPersistent(_ context.Context, s *subject) error {
	ours := map[string]bool{path.Base(overlay.Provider): true, path.Base(lockPath): true}
	for _, u := range overlay.Units {
		ours[u], ours[u+".d"] = true, true
	}
	for _, p := range programs {
		ours[path.Base(p.path)] = true
	}
	plugins := map[string]bool{}
	for _, e := range s.entries {
		if path.Dir(e.Path) == overlay.CNIDir {
			plugins[path.Base(e.Path)] = true
		}
	}
	// A file here is the node's own state, never the image's.
	state := []string{"etc/cni", "etc/kubernetes", "opt/cni", "var/lib/cni", "var/lib/containerd", "var/lib/etcd", "var/lib/kubelet"}

	for _, e := range s.entries {
		dir, ok := under(e.Path, overlay.PersistentDirs)
		if !ok || e.Type == layerfs.Dir {
			continue
		}
		_, isState := under(e.Path, state)
		isOurs := slices.ContainsFunc(strings.Split(e.Path, "/"), func(name string) bool { return ours[name] })
		if isState || isOurs || plugins[path.Base(e.Path)] && strings.HasPrefix(e.Path, "opt/") {
			s.find(e.Path, fmt.Sprintf("%s under /%s, which Kairos keeps over upgrades", e.Type, dir),
				"nothing of ours under that folder", "ship it under /usr or /system, or write it on the node from cloud-config")
		}
	}
	return nil
}

// under returns the folder of the list that holds name.
func under(name string, dirs []string) (string, bool) {
	for _, dir := range dirs {
		if strings.HasPrefix(name, dir+"/") {
			return dir, true
		}
	}
	return "", false
}

// checkShadow looks for a second program of the same name in a folder that
// PATH, or kairos-agent's search for providers, has before /usr/bin and
// /system/providers.
func checkShadow(_ context.Context, s *subject) error {
	before := func(dir, name string) {
		if e, ok := s.lstat(dir); !ok || e.Type != layerfs.Dir {
			return // a link to the folder with our programs
		}
		if e, ok := s.lstat(dir + "/" + path.Base(name)); ok {
			s.find(e.Path, describe(e), "only /"+name, "remove the other one from the image")
		}
	}
	for _, p := range programs {
		before("usr/sbin", p.path)
	}
	before("usr/sbin", overlay.Provider)
	before("usr/bin", overlay.Provider)
	return nil
}
