package inspect

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/kairos-io/provider-kubernetes/builder/layerfs"
	"github.com/kairos-io/provider-kubernetes/matrix"
	"github.com/kairos-io/provider-kubernetes/overlay"
)

// setting is one value that containerd's configuration must have. The tables
// and keys are those of containerd 2.3 (plugins/*/plugin.go,
// internal/cri/config/config.go, internal/nri/config.go).
type setting struct {
	key  []string
	want any
}

// disabled are the plugins that must be off: opt puts a folder that outlives
// the image in front of PATH.
var disabled = []any{
	"io.containerd.internal.v1.opt",
	"io.containerd.snapshotter.v1.erofs",
	"io.containerd.differ.v1.erofs",
	"io.containerd.mount-handler.v1.erofs",
}

// Folders whose programs containerd runs as root. They must be there and empty.
var (
	verifierDir = "usr/lib/provider-kubernetes/image-verifier/bin"
	nriDir      = "usr/lib/provider-kubernetes/nri/plugins"
	nriConfDir  = "usr/lib/provider-kubernetes/nri/conf.d"
)

func settings(row matrix.Row) []setting {
	plugin := func(id string, key ...string) []string { return append([]string{"plugins", id}, key...) }
	runc := func(key ...string) []string {
		return plugin("io.containerd.cri.v1.runtime", append([]string{"containerd", "runtimes", "runc"}, key...)...)
	}
	return []setting{
		{[]string{"imports"}, []any{"/etc/containerd/conf.d/*.toml"}},
		{[]string{"disabled_plugins"}, disabled},
		{plugin("io.containerd.cri.v1.images", "pinned_images", "sandbox"), matrix.Registry + "/pause:" + row.Pause},
		{plugin("io.containerd.cri.v1.images", "registry", "config_path"), "/etc/containerd/certs.d"},
		{plugin("io.containerd.cri.v1.runtime", "cni", "bin_dirs"), []any{"/" + overlay.CNIDir, "/opt/cni/bin"}},
		{plugin("io.containerd.cri.v1.runtime", "cni", "conf_dir"), "/etc/cni/net.d"},
		{plugin("io.containerd.cri.v1.runtime", "containerd", "default_runtime_name"), "runc"},
		{runc("runtime_type"), "io.containerd.runc.v2"},
		{runc("runtime_path"), "/usr/bin/containerd-shim-runc-v2"},
		{runc("options", "BinaryName"), "/usr/bin/runc"},
		{runc("options", "SystemdCgroup"), true},
		{plugin("io.containerd.image-verifier.v1.bindir", "bin_dir"), "/" + verifierDir},
		{plugin("io.containerd.nri.v1.nri", "plugin_path"), "/" + nriDir},
		{plugin("io.containerd.nri.v1.nri", "plugin_config_path"), "/" + nriConfDir},
	}
}

// checkContainerd compares the configuration file with the promised settings,
// and then what the image's own containerd makes of that file: a key that it
// does not know would be gone there.
func checkContainerd(ctx context.Context, s *subject) error {
	for _, dir := range []string{verifierDir, nriDir, nriConfDir} {
		for _, e := range s.entries {
			if strings.HasPrefix(e.Path, dir+"/") {
				s.find(e.Path, describe(e), "an empty folder /"+dir, "remove it: containerd would run it as root")
			}
		}
	}
	b, ok := s.small[overlay.ContainerdConfig]
	if !ok {
		return nil // the rule about paths
	}
	var doc map[string]any
	if err := toml.Unmarshal(b, &doc); err != nil {
		s.find(overlay.ContainerdConfig, "not TOML: "+err.Error(), "containerd's configuration, version 3", "correct the file")
		return nil
	}
	if v, _ := doc["version"].(int64); v != 3 {
		s.find(overlay.ContainerdConfig, fmt.Sprintf("version = %v", doc["version"]), "version = 3", "write the file in containerd's format 3")
		return nil
	}
	if !s.compare(doc, settings(s.Row), "") {
		return nil
	}

	program := filepath.Join(s.dir, "usr/bin/containerd")
	if e, ok := s.lstat("usr/bin/containerd"); !ok || e.Type != layerfs.Regular || e.Mode&0o111 == 0 {
		return nil
	}
	if !s.runs() {
		s.note("containerd was not run: it is for %s", s.Platform)
		return nil
	}
	// Operators' files under /etc are the node's and not this machine's.
	delete(doc, "imports")
	b, err := toml.Marshal(doc)
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, "containerd.toml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return err
	}
	out, err := s.output(ctx, program, "--config", file, "config", "dump")
	if ctx.Err() != nil {
		return err
	}
	var dump map[string]any
	if err == nil {
		err = toml.Unmarshal(out, &dump)
	}
	if err != nil {
		s.find("usr/bin/containerd", "config dump: "+s.message(out, err), "the configuration as containerd reads it", "run it on that file and see what it objects to")
		return nil
	}
	s.compare(dump, settings(s.Row)[1:], " as containerd reads it")
	return nil
}

// compare reports every setting that differs and tells whether none does.
func (s *subject) compare(doc map[string]any, want []setting, where string) bool {
	equal := true
	for _, set := range want {
		got, ok := lookup(doc, set.key)
		if list, isList := set.want.([]any); isList && ok {
			if found, _ := got.([]any); !slices.ContainsFunc(list, func(v any) bool { return !slices.Contains(found, v) }) && set.key[0] == "disabled_plugins" {
				continue // more may be off
			}
		}
		if !ok || !reflect.DeepEqual(got, set.want) {
			found := "not set"
			if ok {
				found = fmt.Sprint(got)
			}
			s.find(overlay.ContainerdConfig, strings.Join(set.key, ".")+where+": "+found, fmt.Sprint(set.want),
				"set it; additions belong into /etc/containerd/conf.d on the node")
			equal = false
		}
	}
	return equal
}

func lookup(doc map[string]any, key []string) (any, bool) {
	var v any = doc
	for _, k := range key {
		table, _ := v.(map[string]any)
		var ok bool
		if v, ok = table[k]; !ok {
			return nil, false
		}
	}
	return v, true
}
