package units

import (
	"slices"
	"strings"
)

// missing returns those of the units that could run but neither do nor are
// about to, out of what `systemctl show` prints of them: blocks of NAME=value
// with Id, LoadState, ActiveState and Job. A unit that is masked, failed or
// known by another name is not missing.
func missing(show []byte, units []string) []string {
	var idle []string
	for block := range strings.SplitSeq(string(show), "\n\n") {
		unit := map[string]string{}
		for line := range strings.Lines(block) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			unit[name] = value
		}
		queued := unit["Job"] != "" && unit["Job"] != "0"
		if slices.Contains(units, unit["Id"]) && unit["LoadState"] == "loaded" && unit["ActiveState"] == "inactive" && !queued {
			idle = append(idle, unit["Id"])
		}
	}
	return idle
}
