// Command measure runs a program in a node and prints what it cost: seconds of
// processor time of it and all that it started, bytes of memory of the largest
// of them at its peak, and the exit code. What the program prints is dropped.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

func main() {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	_ = cmd.Run() // the state tells
	if cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, cmd.Err, "did not start:", os.Args[1:])
		os.Exit(1)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	fmt.Println(cpu.Seconds(), usage.Maxrss<<10, cmd.ProcessState.ExitCode())
}
