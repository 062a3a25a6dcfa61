package rebuilt

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kairos-io/provider-kubernetes/builder/debian"
	"github.com/kairos-io/provider-kubernetes/builder/finish"
	"github.com/kairos-io/provider-kubernetes/builder/lock"
	"github.com/kairos-io/provider-kubernetes/builder/rootfs"
	"github.com/kairos-io/provider-kubernetes/builder/store"
)

// imageFormat is raised whenever the way an image is put together changes, so
// that none of the old form is taken from the store.
const imageFormat = "v1"

// recipe says what one image is made from.
type recipe struct {
	name, reference string
	files           map[string]string // path in the image -> program
	entrypoint      []string
	packages        []string // Debian packages laid below
	arrange         func(*debian.Tree) error
	labels          map[string]string
	tools           bool // its files are laid into the node image
}

// made is a finished image in the upstream store.
type made struct {
	name, reference string
	index, manifest store.Descriptor
	tools           []string
}

// basePackages make up the base: a systemd that boots, and the programs that
// kubelet, containerd and kubeadm look for on a node.
var basePackages = []string{
	"base-files", "base-passwd", "bash", "ca-certificates", "conntrack", "coreutils", "dash", "dbus", "e2fsprogs",
	"ethtool", "findutils", "grep", "gzip", "hostname", "iproute2", "iptables", "kmod", "libc-bin", "login", "mawk",
	"mount", "nftables", "passwd", "procps", "sed", "socat", "systemd", "systemd-sysv", "tar", "udev", "util-linux", "xfsprogs",
}

// proxyPackages are what kube-proxy runs: nft, iptables and conntrack.
var proxyPackages = []string{"conntrack", "iptables", "kmod", "nftables"}

// recipes returns the images of a row: those kubeadm asks for, those that only
// tools are taken from, and the base.
func (s *Supply) recipes() []recipe {
	var out []recipe
	for _, img := range s.Row.Images() {
		r := recipe{name: img.Name, reference: img.Reference}
		switch img.Name {
		case "coredns":
			r.files, r.entrypoint = map[string]string{"coredns": "coredns"}, []string{"/coredns"}
		case "pause":
			r.files, r.entrypoint = map[string]string{"pause": "pause"}, []string{"/pause"}
		case "etcd":
			r.files = map[string]string{}
			for _, p := range []string{"etcd", "etcdctl", "etcdutl"} {
				r.files["usr/local/bin/"+p] = p
			}
		default:
			r.files, r.entrypoint = map[string]string{"usr/local/bin/" + img.Name: img.Name}, []string{"/usr/local/bin/" + img.Name}
		}
		if img.Name == "kube-proxy" {
			r.packages = proxyPackages
			r.arrange = func(t *debian.Tree) error { alternatives(t); return nil }
		}
		out = append(out, r)
	}
	tool := func(name, version string, programs ...string) {
		r := recipe{name: name, reference: Host + "/" + name + ":v" + version, files: map[string]string{}, tools: true}
		for _, p := range programs {
			r.files["usr/bin/"+p] = p
		}
		out = append(out, r)
	}
	tool("kubernetes-node", s.Row.Kubernetes.String()[1:], "kubeadm", "kubelet", "kubectl")
	tool("containerd", s.Stack.Containerd, "containerd", "containerd-shim-runc-v2", "ctr")
	tool("runc", s.Stack.Runc, "runc")
	tool("crictl", s.Stack.Crictl, "crictl")
	tool("cni-plugins", s.Stack.CNIPlugins, cniPrograms(components(s.Row, s.Stack))...)
	return append(out, recipe{
		name: "base", reference: Host + "/base:debian", packages: basePackages, arrange: arrangeBase,
		entrypoint: []string{"/usr/lib/systemd/systemd"},
		labels:     map[string]string{"provider-kubernetes.kairos.io/base": "debian packages; not a Kairos OS"},
	})
}

// makes tells whether the image of that name is to be made.
func (s *Supply) makes(name string) bool {
	return len(s.Only) == 0 || slices.Contains(s.Only, name)
}

// needed returns the components, with the programs that the images take.
func (s *Supply) needed() []component {
	taken := map[string]bool{}
	for _, r := range s.recipes() {
		for _, p := range r.files {
			taken[p] = taken[p] || s.makes(r.name)
		}
	}
	var out []component
	for _, c := range components(s.Row, s.Stack) {
		c.programs = slices.DeleteFunc(c.programs, func(p program) bool { return !taken[p.name] })
		if len(c.programs) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// packageUse is a set of Debian packages and what takes files from it.
type packageUse struct {
	user  string
	names []string
}

// packages returns all uses of Debian packages: by images, and by what is built
// with C.
func (s *Supply) packages() []packageUse {
	var uses []packageUse
	for _, c := range components(s.Row, s.Stack) {
		if c.cgo {
			uses = append(uses, packageUse{c.name, []string{seccompPackage}})
		}
	}
	for _, r := range s.recipes() {
		if len(r.packages) > 0 {
			uses = append(uses, packageUse{r.name, r.packages})
		}
	}
	return uses
}

func cniPrograms(cs []component) []string {
	var names []string
	for _, c := range cs {
		if c.name == "cni-plugins" {
			for _, p := range c.programs {
				names = append(names, p.name)
			}
		}
	}
	return names
}

// debs resolves Debian packages and remembers what for.
func (s *Supply) debs(ctx context.Context, user string, names []string) ([]debian.Package, error) {
	pkgs, _, err := s.Debian.Resolve(ctx, names, s.Refresh)
	for _, p := range pkgs {
		s.resolved = append(s.resolved, lock.Input{Name: user, Kind: lock.Packages, Source: p.File, Digest: p.Digest, Size: p.Size,
			Verified: lock.Verification{By: lock.ByArchive}})
	}
	return pkgs, err
}

// images makes every image of the row.
func (s *Supply) images(ctx context.Context, bins map[string]store.Descriptor) ([]made, error) {
	var all []made
	for _, r := range s.recipes() {
		if !s.makes(r.name) {
			continue
		}
		pkgs := []debian.Package{}
		if len(r.packages) > 0 {
			var err error
			if pkgs, err = s.debs(ctx, r.name, r.packages); err != nil {
				return nil, fmt.Errorf("image %s: %w", r.reference, err)
			}
		}
		m, err := s.image(ctx, r, pkgs, bins)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", r.reference, err)
		}
		all = append(all, m)
	}
	return all, nil
}

func (s *Supply) image(ctx context.Context, r recipe, pkgs []debian.Package, bins map[string]store.Descriptor) (made, error) {
	m := made{name: r.name, reference: r.reference}
	id := []string{imageFormat, s.Platform.String(), fmt.Sprint(s.Epoch.Unix()), r.name, fmt.Sprint(r.entrypoint, r.labels)}
	layer := rootfs.Layer{Name: r.name}
	for _, p := range slices.Sorted(maps.Keys(r.files)) {
		d, ok := bins[r.files[p]]
		if !ok {
			return m, fmt.Errorf("program %s was not built", r.files[p])
		}
		layer.Files = append(layer.Files, rootfs.File{Path: p, Mode: 0o755, Content: d})
		id = append(id, p, d.Digest)
		if r.tools {
			m.tools = append(m.tools, p)
		}
	}
	for _, p := range pkgs {
		id = append(id, p.Digest)
	}
	key := strings.Join(id, "\x00")
	var known struct{ Index, Manifest store.Descriptor }
	if s.Upstream.Lookup("images", key, &known) && s.whole(known.Manifest) && s.Upstream.Has(known.Index) {
		m.index, m.manifest = known.Index, known.Manifest
		return m, nil
	}

	step := s.Report.Step("assemble " + r.reference)
	if len(pkgs) > 0 {
		tree, err := s.tree(ctx, pkgs, r.arrange)
		if err != nil {
			return m, step.Done(err)
		}
		defer tree.Close()
		layer.Files = append(layer.Files, files(tree)...)
	}
	w := &rootfs.Writer{Store: s.Upstream, Epoch: s.Epoch}
	built, err := w.Write(ctx, layer)
	if err != nil {
		return m, step.Done(err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": s.Platform.Architecture, "os": s.Platform.OS, "variant": s.Platform.Variant,
		"config": map[string]any{
			"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"Entrypoint": r.entrypoint,
			"Labels":     r.labels,
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{}},
	})
	if err != nil {
		return m, step.Done(err)
	}
	img, err := finish.Append{Store: s.Upstream}.Finish(ctx, finish.Spec{
		Base:     finish.Base{Config: config},
		Layers:   []rootfs.Built{built},
		Platform: finish.Platform(s.Platform),
		Created:  s.Epoch,
	})
	if err != nil {
		return m, step.Done(err)
	}
	index, err := finish.Index([]finish.Image{img}, nil)
	if err != nil {
		return m, step.Done(err)
	}
	for _, doc := range []finish.Document{img.Config, img.Manifest, index} {
		if _, err := s.Upstream.Put(ctx, bytes.NewReader(doc.Bytes), doc.Descriptor); err != nil {
			return m, step.Done(err)
		}
	}
	m.index, m.manifest = index.Descriptor, img.Manifest.Descriptor
	known.Index, known.Manifest = m.index, m.manifest
	return m, step.Done(s.Upstream.Record("images", key, known))
}

// whole tells whether a manifest and all that it names is in the store.
func (s *Supply) whole(d store.Descriptor) bool {
	b, err := s.Upstream.ReadAll(d.Digest, 1<<20)
	if err != nil {
		return false
	}
	var m struct {
		Config store.Descriptor
		Layers []store.Descriptor
	}
	if json.Unmarshal(b, &m) != nil || !s.Upstream.Has(m.Config) {
		return false
	}
	for _, l := range m.Layers {
		if !s.Upstream.Has(l) {
			return false
		}
	}
	return true
}

func (s *Supply) tree(ctx context.Context, pkgs []debian.Package, arrange func(*debian.Tree) error) (*debian.Tree, error) {
	t, err := debian.NewTree(s.Upstream.Dir() + "/tmp")
	if err != nil {
		return nil, err
	}
	for _, p := range pkgs {
		deb, err := s.Upstream.Path(p.Digest)
		if err == nil {
			err = t.Add(ctx, deb, keep)
		}
		if err != nil {
			t.Close()
			return nil, fmt.Errorf("package %s: %w", p.File, err)
		}
	}
	if err := arrange(t); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// keep leaves out what a node has no use for; licences stay.
func keep(p string) bool {
	for _, dir := range []string{"usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bug", "usr/share/bash-completion", "usr/share/zsh"} {
		if strings.HasPrefix(p, dir+"/") {
			return false
		}
	}
	return !strings.HasPrefix(p, "usr/share/doc/") || path.Base(p) == "copyright"
}

// files turns a tree into files of a layer. Everything belongs to root, so a
// set-group-id bit, which would then mean root, is dropped.
func files(t *debian.Tree) []rootfs.File {
	var out []rootfs.File
	for _, e := range t.Entries() {
		f := rootfs.File{Path: e.Path, Mode: e.Mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSticky)}
		switch {
		case e.Mode.IsDir():
			f.Type = rootfs.Dir
		case e.Mode&fs.ModeSymlink != 0:
			f.Type, f.Target, f.Mode = rootfs.Symlink, e.Target, 0
		default:
			f.Content = e.Content
			f.Open = func() (io.ReadCloser, error) { return io.NopCloser(t.Open(e)), nil }
		}
		out = append(out, f)
	}
	return out
}

// alternatives makes the links that iptables' maintainer script would make.
func alternatives(t *debian.Tree) {
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			t.Symlink("usr/sbin/"+family+suffix, "xtables-nft-multi")
		}
	}
	for _, tool := range []string{"ebtables", "arptables"} {
		t.Symlink("usr/sbin/"+tool, "xtables-nft-multi")
	}
}

// arrangeBase does, by plain rules, what the packages' maintainer scripts would
// do on a machine, as far as a node needs it.
func arrangeBase(t *debian.Tree) error {
	alternatives(t)
	t.Symlink("usr/bin/awk", "mawk")
	t.Symlink("var/run", "/run")
	t.Symlink("etc/os-release", "../usr/lib/os-release")
	for dir, mode := range map[string]fs.FileMode{
		"proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755, "mnt": 0o755, "opt": 0o755, "root": 0o700, "oem": 0o755, "system": 0o755, "usr/local": 0o755,
		"tmp": 0o777 | fs.ModeSticky, "var/tmp": 0o777 | fs.ModeSticky,
	} {
		t.Dir(dir, mode)
	}
	put := func(name string, mode fs.FileMode, content string) error {
		return t.File(name, mode, strings.NewReader(content))
	}
	read := func(name string) (string, error) {
		e, ok := t.Lookup(name)
		if !ok {
			return "", fmt.Errorf("the packages bring no /%s", name)
		}
		b, err := io.ReadAll(t.Open(e))
		return string(b), err
	}
	passwd, err := read("usr/share/base-passwd/passwd.master")
	if err != nil {
		return err
	}
	group, err := read("usr/share/base-passwd/group.master")
	if err != nil {
		return err
	}
	nsswitch, err := read("usr/share/libc-bin/nsswitch.conf")
	if err != nil {
		return err
	}
	osRelease, err := read("usr/lib/os-release")
	if err != nil {
		return err
	}
	// ID stays debian for whoever asks what packages these are.
	osRelease += "VARIANT=\"provider-kubernetes test base, not a Kairos OS\"\nVARIANT_ID=not-kairos\n"
	var bundle bytes.Buffer
	for _, e := range t.Entries() {
		if strings.HasPrefix(e.Path, "usr/share/ca-certificates/") && strings.HasSuffix(e.Path, ".crt") {
			if _, err := io.Copy(&bundle, t.Open(e)); err != nil {
				return err
			}
		}
	}
	for _, f := range []struct {
		name    string
		mode    fs.FileMode
		content string
	}{
		{"etc/passwd", 0o644, passwd},
		{"etc/group", 0o644, group},
		{"etc/shadow", 0o640, locked(passwd, ":*:1::::::")},
		{"etc/gshadow", 0o640, locked(group, ":*::")},
		{"etc/nsswitch.conf", 0o644, nsswitch},
		{"etc/machine-id", 0o444, ""},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, bundle.String()},
		{"usr/lib/os-release", 0o644, osRelease},
		// dbus' maintainer script makes its user; systemd makes it at boot.
		{"usr/lib/sysusers.d/dbus.conf", 0o644, "u messagebus - \"System message bus\"\n"},
	} {
		if err := put(f.name, f.mode, f.content); err != nil {
			return err
		}
	}
	return nil
}

// locked gives every account of a passwd or group file a line without password.
func locked(accounts, rest string) string {
	var b strings.Builder
	for line := range strings.Lines(accounts) {
		name, _, _ := strings.Cut(line, ":")
		b.WriteString(name + rest + "\n")
	}
	return b.String()
}
