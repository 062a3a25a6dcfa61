// Command program stands for every program of a node image. What it prints for
// which command line is written behind its own end: records of a command line
// and an answer, each ended by a NUL, after a line that says where they begin.
package main

import (
	"os"
	"path/filepath"
	"strings"
)

const begin = "\nanswers:\n"

func main() {
	self, err := os.Executable()
	if err != nil {
		os.Exit(2)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		os.Exit(2)
	}
	asked := strings.Join(append([]string{filepath.Base(self)}, os.Args[1:]...), " ")
	text := string(b)
	records := strings.Split(text[strings.LastIndex(text, begin)+len(begin):], "\x00")
	for i := 0; i+1 < len(records); i += 2 {
		if records[i] == asked {
			os.Stdout.WriteString(records[i+1])
			return
		}
	}
	os.Stderr.WriteString("no answer to " + asked + "\n")
	os.Exit(1)
}
