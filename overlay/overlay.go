// Package overlay is the set of files that are laid into a node image beside
// the binaries: units, drop-ins, containerd's configuration, kernel settings.
// They lie under rootfs/ as they do in the image, rooted at /. What a Go embed
// can't carry (modes, links, empty folders) is in the tables here. The package
// is pure: the same Params give the same bytes on every host.
package overlay

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

//go:embed all:rootfs
var rootfs embed.FS

// Places in the image that the overlay, the builder and the node runtime share,
// relative to /.
const (
	UnitDir          = "usr/lib/systemd/system"
	WantsDir         = UnitDir + "/multi-user.target.wants"
	CNIDir           = "usr/lib/provider-kubernetes/cni/bin"
	ContainerdConfig = "etc/containerd/config.toml"
	Provider         = "system/providers/agent-provider-kubernetes"
	BundleDir        = "system/provider-kubernetes/images"
)

// Units are the units of the image, in the order in which they start.
var Units = []string{
	"provider-kubernetes-unit-migrate.service",
	"containerd.service",
	"provider-kubernetes-image-import.service",
	"kubelet.service",
}

// PersistentDirs are the folders that Kairos keeps over an upgrade
// (PERSISTENT_STATE_PATHS in /system/oem/00_rootfs.yaml of every Kairos up to
// now, and /usr/local). At boot the image's content is only added to what is
// there, so a versioned file that an image ships under one of them may stay
// hidden for ever by an older copy.
var PersistentDirs = []string{
	"etc/cni", "etc/init.d", "etc/iscsi", "etc/k0s", "etc/kubernetes", "etc/modprobe.d", "etc/pwx",
	"etc/rancher", "etc/runlevels", "etc/ssh", "etc/ssl/certs", "etc/ssl/private", "etc/sysconfig",
	"etc/systemd", "etc/zfs", "home", "opt", "root", "snap", "usr/libexec", "usr/local",
	"usr/share/pki/trust", "var/cores", "var/lib/calico", "var/lib/ca-certificates", "var/lib/cni",
	"var/lib/confexts", "var/lib/containerd", "var/lib/dbus", "var/lib/etcd", "var/lib/extensions",
	"var/lib/k0s", "var/lib/kairos", "var/lib/kubelet", "var/lib/longhorn", "var/lib/osd",
	"var/lib/rancher", "var/lib/rook", "var/lib/snapd", "var/lib/tailscale", "var/lib/wicked",
	"var/log", "var/snap",
}

// emptyDirs are folders that must be in the image because nothing can make
// them in a read-only /usr (or because a glob or a listing reads them).
var emptyDirs = []string{
	"etc/containerd/certs.d",
	"etc/containerd/conf.d",
	CNIDir,
	// kube-proxy mounts it from the node; the base's kernel may have no modules.
	"usr/lib/modules",
	"usr/lib/provider-kubernetes/image-verifier/bin",
	"usr/lib/provider-kubernetes/nri/conf.d",
	"usr/lib/provider-kubernetes/nri/plugins",
	// The kubelet makes this folder at each start (volumePluginDir's default).
	"usr/libexec/kubernetes/kubelet-plugins/volume/exec",
}

// Params are the values that differ from one image to the next.
type Params struct {
	Pause string // sandbox image as the bundled kubeadm lists it, "registry.k8s.io/pause:3.10.2"
}

// File is one entry of the overlay. Owner and group are always root.
type File struct {
	Path    string      // slash-separated and relative to /, "usr/lib/systemd/system/kubelet.service"
	Mode    fs.FileMode // type and permissions: a folder 0755, a file 0644, a link 0777
	Content []byte      // of a file
	Target  string      // of a link
}

// Files returns the overlay for p with all parent folders, sorted by path, so
// that a folder comes before what it holds. A Params value that is missing or
// malformed, and a placeholder (@NAME@) that Params don't know, are errors.
func Files(p Params) ([]File, error) {
	if !imageReference.MatchString(p.Pause) {
		return nil, fmt.Errorf("overlay: sandbox image is %q: expected a reference such as registry.k8s.io/pause:3.10.2", p.Pause)
	}
	values := map[string]string{"@PAUSE@": p.Pause}

	files := map[string]File{}
	add := func(f File) {
		files[f.Path] = f
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			files[dir] = File{Path: dir, Mode: fs.ModeDir | 0o755}
		}
	}
	for _, dir := range emptyDirs {
		add(File{Path: dir, Mode: fs.ModeDir | 0o755})
	}
	for _, unit := range Units {
		add(File{Path: WantsDir + "/" + unit, Mode: fs.ModeSymlink | 0o777, Target: "../" + unit})
	}
	err := fs.WalkDir(rootfs, "rootfs", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := rootfs.ReadFile(name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "rootfs/")
		if b, err = fill(b, values); err != nil {
			return fmt.Errorf("overlay: /%s: %w", name, err)
		}
		add(File{Path: name, Mode: 0o644, Content: b})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(files), func(a, b File) int { return strings.Compare(a.Path, b.Path) }), nil
}

var (
	imageReference = regexp.MustCompile(`^[a-z0-9][a-z0-9./_-]*(:[0-9]+/[a-z0-9./_-]+)?:[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	placeholder    = regexp.MustCompile(`@[A-Z_]+@`)
)

// fill puts values in the place of their placeholders.
func fill(b []byte, values map[string]string) ([]byte, error) {
	var unknown error
	out := placeholder.ReplaceAllFunc(b, func(name []byte) []byte {
		v, ok := values[string(name)]
		if !ok {
			unknown = fmt.Errorf("placeholder %s has no value", name)
		}
		return []byte(v)
	})
	return out, unknown
}
