// Package boot tests the node side where it counts: in nodes that boot an image
// of this checkout with their own systemd, containerd and kubelet.
//
// What earlier releases shipped is known by its hashes alone. Where a test needs
// such files it makes its own and adds their hashes to the table of the node
// runtime, which is built for it and laid over the image; nothing else differs.
package boot

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
	"github.com/kairos-io/provider-kubernetes/test/images"
	"github.com/kairos-io/provider-kubernetes/test/lab"
)

const (
	agent       = "/" + overlay.Provider
	migrateUnit = "provider-kubernetes-unit-migrate.service"
	importUnit  = "provider-kubernetes-image-import.service"
)

// built is where what the tests build goes.
var built string

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(func() int {
		var err error
		if built, err = os.MkdirTemp("", "boot"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(built)
		return m.Run()
	}())
}

// shipped are the tests' own files of an earlier release, below
// /etc/systemd/system. They work, so that an image with them boots.
var shipped = map[string]string{
	"containerd.service": `[Unit]
Description=containerd of an earlier release
[Service]
Type=notify
ExecStart=/usr/bin/containerd
[Install]
WantedBy=multi-user.target
`,
	"kubelet.service": `[Unit]
Description=kubelet of an earlier release
After=containerd.service
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
[Install]
WantedBy=multi-user.target
`,
	"kubelet.service.d/10-kubeadm.conf": `[Service]
ExecStart=
ExecStart=/usr/bin/kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml
`,
	importUnit: `[Unit]
Description=image import of an earlier release
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
`,
}

// broken was shipped as containerd.service, too. systemd can't load it, so it
// is no part of what the boot starts.
const broken = "[Unit]\nDescription=containerd of a release that went wrong\n[Service]\nType=notify\n"

const unitDir = "/etc/systemd/system/"

// shippedLinks are the links that enabled them.
func shippedLinks() map[string]string {
	links := map[string]string{}
	for name := range shipped {
		if !strings.Contains(name, "/") {
			links["multi-user.target.wants/"+name] = unitDir + name
		}
	}
	return links
}

// provider is the layer with the node runtime that knows them.
var provider = sync.OnceValues(func() (string, error) {
	const table = "var History = []Shipped{\n"
	rows := table
	add := func(path, content string) {
		rows += fmt.Sprintf("\t{%q, %d, \"%x\"},\n", path, len(content), sha256.Sum256([]byte(content)))
	}
	for _, path := range slices.Sorted(maps.Keys(shipped)) {
		add(path, shipped[path])
	}
	add("containerd.service", broken)
	return rebuilt("provider", "overlay/history.go", table, rows)
})

// rebuilt makes a layer with the node runtime in which one text of one source
// file is another.
func rebuilt(name, source, from, to string) (layer string, err error) {
	root, err := images.Root()
	if err != nil {
		return "", err
	}
	source = filepath.Join(root, source)
	b, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	if strings.Count(string(b), from) != 1 {
		return "", fmt.Errorf("%s: expected %q once", source, from)
	}
	layer = filepath.Join(built, name)
	if err := os.MkdirAll(layer, 0o755); err != nil {
		return "", err
	}
	other, replace := layer+".go", layer+".json"
	if err := os.WriteFile(other, []byte(strings.Replace(string(b), from, to, 1)), 0o644); err != nil {
		return "", err
	}
	if b, err = json.Marshal(map[string]any{"Replace": map[string]string{source: other}}); err != nil {
		return "", err
	}
	if err := os.WriteFile(replace, b, 0o644); err != nil {
		return "", err
	}
	return layer, build(root, filepath.Join(layer, overlay.Provider), "./runtime", "-overlay", replace)
}

// build builds a program as the Makefile builds the node runtime.
func build(root, file, pkg string, flags ...string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file}, flags...)
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, b)
	}
	return os.Chmod(file, 0o755)
}

// stock is this checkout's image of a minor as it is. A test that asks for one
// where nodes can't be booted is skipped.
func stock(t testing.TB, minor string) lab.Image {
	t.Helper()
	if err := lab.Check(); err != nil {
		t.Skip(err)
	}
	return lab.Checkout(t, minor)
}

// checkout is that of the newest minor, whose node runtime knows what the tests
// shipped, and without the bundle, whose import takes longer than a boot.
func checkout(t testing.TB) lab.Image {
	t.Helper()
	img := stock(t, "1.37")
	layer, err := provider()
	if err != nil {
		t.Fatal(err)
	}
	bare := newLayer(t)
	bare.hide("system/provider-kubernetes")
	return img.With(layer).With(bare.dir)
}

// older is the image of an earlier release: all units are in /etc.
func older(t testing.TB) lab.Image {
	image := checkout(t)
	l := newLayer(t)
	for _, unit := range overlay.Units {
		l.hide(overlay.UnitDir + "/" + unit)
		l.hide(overlay.UnitDir + "/" + unit + ".d")
		l.hide(overlay.WantsDir + "/" + unit)
	}
	for name, content := range shipped {
		l.write(unitDir+name, content)
	}
	for name, target := range shippedLinks() {
		l.link(unitDir+name, target)
	}
	return image.With(l.dir)
}

// layer is a folder that is laid over an image.
type layer struct {
	t   testing.TB
	dir string
}

func newLayer(t testing.TB) layer {
	l := layer{t, t.TempDir()}
	l.must(os.Chmod(l.dir, 0o755))
	return l
}

func (l layer) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// path makes the folder that name is in.
func (l layer) path(name string) string {
	l.t.Helper()
	p := filepath.Join(l.dir, name)
	l.must(os.MkdirAll(filepath.Dir(p), 0o755))
	return p
}

func (l layer) write(name, content string) {
	l.t.Helper()
	p := l.path(name)
	l.must(os.WriteFile(p, []byte(content), 0o644))
	at := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	l.must(os.Chtimes(p, at, at))
}

func (l layer) link(name, target string) {
	l.t.Helper()
	l.must(os.Symlink(target, l.path(name)))
}

// hide makes a name vanish that is in the image below.
func (l layer) hide(name string) {
	l.t.Helper()
	l.must(unix.Mknod(l.path(name), unix.S_IFCHR, 0))
}

// kept is the layer that the node's persistent folders are: what is written
// there between two boots, as an earlier boot would have, the next one has.
func kept(t testing.TB, n *lab.Node) layer {
	t.Helper()
	dir, err := n.Kept(unitDir)
	if err != nil {
		t.Fatal(err)
	}
	return layer{t, dir}
}

// member returns the files that make a kubelet run: those of a node whose API
// server doesn't answer. The kubelet insists on a certificate of its own.
func member(t testing.TB) map[string]string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, &subject, &subject, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, b []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return map[string]string{
		"/etc/kubernetes/kubelet.conf": `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: u, user: {client-certificate-data: ` + encode("CERTIFICATE", cert) + `, client-key-data: ` + encode("EC PRIVATE KEY", private) + `}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`,
		"/var/lib/kubelet/config.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failCgroupV1: false # of the machine that the tests run on
cgroupDriver: cgroupfs
oomScoreAdj: 0
`,
	}
}

func boot(t testing.TB, n *lab.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := n.Boot(ctx); err != nil {
		t.Fatal(err)
	}
}

func powerOff(t testing.TB, n *lab.Node) {
	t.Helper()
	if err := n.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// must runs a command that has to exit with 0, and returns what it printed.
func must(t testing.TB, n *lab.Node, args ...string) string {
	t.Helper()
	r := n.Run(t.Context(), args...)
	if r.Code != 0 {
		t.Fatalf("%s: exit %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// show returns a property of a unit.
func show(t testing.TB, n *lab.Node, unit, property string) string {
	t.Helper()
	return must(t, n, "systemctl", "show", "--value", "--property="+property, unit)
}

// journal returns this boot's lines that journalctl's options choose.
func journal(t testing.TB, n *lab.Node, options ...string) []string {
	t.Helper()
	must(t, n, "journalctl", "--sync")
	return strings.Split(must(t, n, append([]string{"journalctl", "--boot", "--output=cat", "--quiet"}, options...)...), "\n")
}

// said returns the lines of this boot in which a unit's program said something
// that begins with prefix, and its exit code.
func said(t testing.TB, n *lab.Node, unit, prefix string) (lines []string, exit string) {
	t.Helper()
	for _, line := range journal(t, n, "--unit="+unit) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	return lines, show(t, n, unit, "ExecMainStatus")
}

// expect compares lines, and the exit code.
func expect(t testing.TB, what string, lines []string, exit string, want []string, wantExit string) {
	t.Helper()
	if !slices.Equal(lines, want) || exit != wantExit {
		t.Errorf("%s: exit %s\n%s\nexpected %s\n%s", what, exit, strings.Join(lines, "\n"), wantExit, strings.Join(want, "\n"))
	}
}

// runsFromImage checks that a daemon runs, and as the image's files say.
func runsFromImage(t testing.TB, n *lab.Node, unit string, dropIns ...string) {
	t.Helper()
	runsFrom(t, n, unit, "/"+overlay.UnitDir+"/"+unit)
	var want []string
	for _, name := range dropIns {
		want = append(want, "/"+overlay.UnitDir+"/"+unit+".d/"+name)
	}
	if got := strings.Fields(show(t, n, unit, "DropInPaths")); !slices.Equal(got, want) {
		t.Errorf("%s has drop-ins %v, expected %v", unit, got, want)
	}
	if got := show(t, n, unit, "NeedDaemonReload"); got != "no" {
		t.Errorf("%s: systemd has not read what is there now", unit)
	}
	if got := must(t, n, "systemctl", "is-enabled", unit); got != "static" {
		t.Errorf("%s is %s, expected static", unit, got)
	}
	environ := must(t, n, "cat", "/proc/"+show(t, n, unit, "MainPID")+"/environ")
	if !slices.Contains(strings.Split(environ, "\x00"), "PATH=/usr/sbin:/usr/bin:/sbin:/bin") {
		t.Errorf("%s was started without the image's drop-in: its environment is %q", unit, environ)
	}
}

func runsFrom(t testing.TB, n *lab.Node, unit, file string) {
	t.Helper()
	// Where /lib is a link, either name may be told.
	if got := must(t, n, "realpath", show(t, n, unit, "FragmentPath")); got != file {
		t.Errorf("%s comes from %s, expected %s", unit, got, file)
	}
	if got := show(t, n, unit, "ActiveState"); got != "active" {
		t.Errorf("%s is %s, expected active", unit, got)
	}
}
