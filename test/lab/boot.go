package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kairos-io/provider-kubernetes/overlay"
)

// searchPath is PATH inside and outside of nodes.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var environment = []string{"container=lab", "PATH=" + searchPath, "HOME=/root", "TERM=linux", "LANG=C.UTF-8"}

// boot turns the calling process, the first in its namespaces, into systemd
// with the node's file system as root. It returns only with an error, which it
// also writes to the pipe that the keeper reads.
func boot(dir string) error {
	unix.Umask(0)
	err := inheritNothing()
	if err == nil {
		err = enter(dir)
	}
	if err == nil {
		unix.Umask(0o022)
		const systemd = "/usr/lib/systemd/systemd"
		// In a container these are read in the place of the kernel command line.
		err = fmt.Errorf("%s: %w", systemd, syscall.Exec(systemd, []string{systemd, "systemd.getty_auto=no"}, environment))
	}
	_, _ = os.NewFile(reportFD, "report").WriteString(strings.ReplaceAll(err.Error(), "\n", "; "))
	return err
}

func enter(dir string) error {
	p, err := readPlan(dir)
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := joinGroups(p.ID); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("control group namespace: %w", err)
	}
	if err := unix.Sethostname([]byte(p.Name)); err != nil {
		return fmt.Errorf("host name %q: %w", p.Name, err)
	}
	if p.Address != "" {
		err = plug(p)
	} else {
		err = tool("ip", nil, "link", "set", "lo", "up")
	}
	if err != nil {
		return err
	}
	m := mounter{}
	root := m.root(filepath.Join(dir, "mnt"), p.Image)
	m.persistent(root, p.State)
	m.kernel(root, filepath.Join(dir, "mnt", "kernel"), p)
	if m.err == nil {
		m.err = personal(root, p)
	}
	// As the image is on a node; /etc, /var and what is persistent are mounts of
	// their own.
	m.mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	if m.err != nil {
		return m.err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root comes to lie over the new one, where it can be taken away.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root %s: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// The kubelet's mounts are seen by containers.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// mounter makes mounts until the first error, and then does nothing.
type mounter struct{ err error }

func (m *mounter) mount(source, target, fstype string, flags uintptr, data string) {
	if m.err != nil {
		return
	}
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		m.err = fmt.Errorf("mount %s%s on %s (%s): %w", fstype, source, target, data, err)
	}
}

func (m *mounter) bind(source, target string) { m.mount(source, target, "", unix.MS_BIND, "") }

func (m *mounter) mkdir(dir string, mode fs.FileMode) {
	if m.err == nil {
		m.err = os.MkdirAll(dir, mode)
	}
}

func (m *mounter) write(file, content string) {
	if m.err == nil {
		m.err = os.WriteFile(file, []byte(content), 0o644)
	}
}

// root mounts the image with what this boot writes above it, in memory, and
// returns where. Like on a Kairos node only /etc, /var and /srv are writable.
func (m *mounter) root(at string, image []string) string {
	root := filepath.Join(at, "root")
	m.mkdir(at, 0o700)
	m.mount("tmpfs", at, "tmpfs", 0, "mode=700,size=25%")
	for _, dir := range []string{root, at + "/upper", at + "/work"} {
		m.mkdir(dir, 0o755)
	}
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`)
	var lower []string
	for _, dir := range image {
		lower = append(lower, escape.Replace(dir))
	}
	// As one file system: each file with the device of the whole.
	m.mount("overlay", root, "overlay", 0, "xino=on,lowerdir="+strings.Join(lower, ":")+",upperdir="+escape.Replace(at)+"/upper,workdir="+escape.Replace(at)+"/work")
	for _, dir := range []string{"etc", "var", "srv"} {
		m.mkdir(filepath.Join(root, dir), 0o755)
		m.bind(filepath.Join(root, dir), filepath.Join(root, dir))
	}
	return root
}

// persistent binds what Kairos keeps: the persistent partition on /usr/local,
// the configuration's on /oem, and for every other folder a part of the former,
// after what the image has there was added: nothing is removed, and a file that
// is newer than the image's stays. Source: immucore's mount step, which runs the
// same rsync.
func (m *mounter) persistent(root, state string) {
	for _, dir := range overlay.PersistentDirs {
		target := filepath.Join(root, dir)
		source := persistentSource(state, dir)
		if first, _, _ := strings.Cut(dir, "/"); first == "etc" || first == "var" {
			m.mkdir(target, 0o755)
		} else if _, err := os.Stat(target); err != nil {
			continue // nothing can be made in a read-only root
		}
		m.mkdir(source, 0o755)
		if m.err == nil && dir != partition {
			m.err = tool("rsync", nil, "-aquAX", target+"/", source+"/")
		}
		m.bind(source, target)
	}
	if oem := filepath.Join(root, "oem"); m.err == nil {
		m.mkdir(filepath.Join(state, "oem"), 0o755)
		if _, err := os.Stat(oem); err == nil {
			m.bind(filepath.Join(state, "oem"), oem)
		}
	}
}

// partition is where Kairos mounts its persistent partition.
const partition = "usr/local"

// persistentSource returns where a folder of overlay.PersistentDirs lies.
func persistentSource(state, dir string) string {
	base := filepath.Join(state, "persistent")
	if dir == partition {
		return base
	}
	return filepath.Join(base, ".state", strings.ReplaceAll(dir, "/", "-")+".bind")
}

// kernel mounts what the kernel offers, with everything that is the machine's
// and not the node's read-only or replaced; scratch is for the replacements.
func (m *mounter) kernel(root, scratch string, p plan) {
	in := func(name string) string { return filepath.Join(root, name) }
	const guarded = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	m.mount("tmpfs", in("run"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
	m.mount("tmpfs", in("tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")

	m.mount("proc", in("proc"), "proc", guarded, "")
	m.bind(in("proc/sys"), in("proc/sys"))
	m.bind(in("proc/sys/net"), in("proc/sys/net")) // the namespace's own
	m.mount("", in("proc/sys"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|guarded, "")
	m.mkdir(scratch, 0o700)
	for _, name := range sysctls {
		b, err := os.ReadFile(in(path.Join("proc/sys", name)))
		if err != nil {
			continue // not in this kernel
		}
		m.replace(in(path.Join("proc/sys", name)), filepath.Join(scratch, strings.ReplaceAll(name, "/", ".")), string(b))
	}
	// One for each boot, not one for all nodes of the machine.
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	boot := fmt.Sprintf("%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	m.replace(in("proc/sys/kernel/random/boot_id"), filepath.Join(scratch, "boot_id"), boot)

	// Read-only by this mount alone: containers mount the file system again.
	m.mount("sysfs", in("sys"), "sysfs", guarded, "")
	m.mount("", in("sys"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|guarded, "")

	m.mount("tmpfs", in("dev"), "tmpfs", unix.MS_NOSUID, "mode=755")
	for name, number := range map[string]uint64{
		"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7), "random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9),
		"tty": unix.Mkdev(5, 0), "fuse": unix.Mkdev(10, 229),
		"kmsg": unix.Mkdev(1, 3), // the kubelet wants one; the kernel's log is the machine's
	} {
		if m.err == nil {
			m.err = unix.Mknod(in("dev/"+name), unix.S_IFCHR|0o666, int(number))
		}
	}
	m.mkdir(in("dev/pts"), 0o755)
	m.mount("devpts", in("dev/pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")
	m.mkdir(in("dev/shm"), 0o755)
	m.mount("tmpfs", in("dev/shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if m.err == nil {
			m.err = os.Symlink(target, in("dev/"+name))
		}
	}
	m.write(in("dev/console"), "")
	m.bind(p.Terminal, in("dev/console"))
	if _, err := os.Stat(in("proc/sysrq-trigger")); err == nil {
		m.bind(in("dev/null"), in("proc/sysrq-trigger"))
	}

	m.cgroups(in("sys/fs/cgroup"), p.Cgroups)
}

// sysctls are settings of the whole kernel that kubelet, kubeadm and our own
// sysctl file set. In a node they are plain files that begin with the
// machine's value.
var sysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// replace lays a file with that content over another.
func (m *mounter) replace(target, file, content string) {
	m.write(file, content)
	m.bind(file, target)
}

// cgroups mounts the control groups as the namespace shows them: the node's own
// group is their root.
func (m *mounter) cgroups(at string, mode Cgroups) {
	all, err := hierarchies()
	if m.err == nil && err != nil {
		m.err = err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if mode == Unified || len(all) == 1 && all[0].controllers == "" {
		m.mount("cgroup2", at, "cgroup2", flags, "")
		return
	}
	m.mount("tmpfs", at, "tmpfs", flags, "mode=755")
	for _, h := range all {
		if h.controllers == "" {
			m.mkdir(filepath.Join(at, "unified"), 0o755)
			m.mount("cgroup2", filepath.Join(at, "unified"), "cgroup2", flags, "")
			continue
		}
		name, options := h.controllers, h.controllers
		if named, ok := strings.CutPrefix(name, "name="); ok {
			name, options = named, "none,"+options
		}
		m.mkdir(filepath.Join(at, name), 0o755)
		m.mount("cgroup", filepath.Join(at, name), "cgroup", flags, options)
		if each := strings.Split(name, ","); len(each) > 1 {
			for _, one := range each {
				if m.err == nil {
					m.err = os.Symlink(name, filepath.Join(at, one))
				}
			}
		}
	}
}

// personal writes what makes a node this one: names, addresses, the given files.
func personal(root string, p plan) error {
	r, err := os.OpenRoot(root) // no link leads out of it
	if err != nil {
		return err
	}
	defer r.Close()
	id, err := machineID(p.State)
	if err != nil {
		return err
	}
	address, server := "127.0.1.1", "127.0.0.1"
	if p.Address != "" {
		address, _, _ = strings.Cut(p.Address, "/")
		server = p.Gateway
	}
	files := map[string]string{
		"etc/machine-id":  id + "\n",
		"etc/hostname":    p.Name + "\n",
		"etc/hosts":       "127.0.0.1 localhost\n::1 localhost\n" + address + " " + p.Name + "\n",
		"etc/resolv.conf": "# nobody answers there; CoreDNS wants an entry\nnameserver " + server + "\n",
	}
	if !mayLowerOOMScore() {
		files["etc/containerd/conf.d/00-lab.toml"] = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\n"
	}
	for name, content := range p.Files {
		files[strings.TrimPrefix(path.Clean(name), "/")] = content
	}
	for name, content := range files {
		if err := r.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := r.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	// Where there is this folder, the journal outlives a boot.
	return r.MkdirAll("var/log/journal", 0o755)
}

// machineID returns the node's, made at its first boot. Kairos keeps it there.
func machineID(state string) (string, error) {
	name := filepath.Join(persistentSource(state, partition), "etc", "machine-id")
	b, err := os.ReadFile(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return strings.TrimSpace(string(b)), err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return "", err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	s := hex.EncodeToString(id[:])
	return s, os.WriteFile(name, []byte(s+"\n"), 0o444)
}

// mayLowerOOMScore tells whether containers can have the scores that the
// kubelet gives them. Some machines forbid it.
func mayLowerOOMScore() bool {
	const file = "/proc/self/oom_score_adj"
	old, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	lower := os.WriteFile(file, []byte("-999"), 0)
	return lower == nil && os.WriteFile(file, old, 0) == nil
}

// tool runs a program of the machine; its descriptor 3 is the given file.
func tool(name string, extra *os.File, args ...string) error {
	cmd := exec.Command(name, args...)
	if extra != nil {
		cmd.ExtraFiles = []*os.File{extra}
	}
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(b)))
	}
	return nil
}
