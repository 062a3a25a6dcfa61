package agent

import (
	"path"
	"strings"

	"github.com/mudler/yip/pkg/schema"

	"github.com/kairos-io/provider-kubernetes/overlay"
)

// ClusterFile is where a boot's cluster: block lies for reconcile, in memory.
const ClusterFile = "/run/provider-kubernetes/cluster.json"

const provider = "/" + overlay.Provider

// stages returns the cloud-config that makes Kairos run this provider once the
// network is up. Everything is one step, in which Kairos makes folders, writes
// files and runs commands in this order. The file outlives the boot that wrote
// it, and Kairos finds it again: in recovery and live systems, and when the next
// agent.boot withholds or fails. So it is for one boot, named by the kernel's
// boot_id, alone.
func stages(boot string, block []byte) []byte {
	return config(map[string][]schema.Stage{"network.after": {{
		Name: "Reconcile this node with its cluster",
		If:   "grep -qxF '" + boot + "' /proc/sys/kernel/random/boot_id && [ ! -e /run/cos/recovery_mode ] && [ ! -e /run/cos/live_mode ] && [ ! -e /run/cos/autoreset_mode ]",
		Directories: []schema.Directory{
			{Path: path.Dir(ClusterFile), Permissions: 0o755},
		},
		Files: []schema.File{
			// Permissions are set after the content is written. The first, empty
			// file has them before the second brings the token.
			{Path: ClusterFile, Permissions: 0o600},
			// Two braces would start a template, which a token must not be; the
			// file is JSON, in which this is the same text.
			{Path: ClusterFile, Permissions: 0o600, Content: strings.ReplaceAll(string(block), "{{", `{\u007b`)},
		},
		Commands: []string{
			provider + " import-images",
			provider + " reconcile --cluster-file " + ClusterFile,
		},
	}}})
}

// config returns a cloud-config with these stages. Without any it is how each
// of ours begins.
func config(stages map[string][]schema.Stage) []byte {
	c := schema.YipConfig{Name: "provider-kubernetes", Stages: stages}
	return []byte("#cloud-config\n" + c.ToString())
}
