// The streaming half of the rig's kubelet: logs and exec of process nodes.
//
// The API server sends `kubectl logs` and `kubectl exec` to the node's kubelet, over HTTPS and
// SPDY or WebSocket. The protocols are those of Kubernetes' own libraries, used here as they are;
// what a pod's container is comes from a record that the rig's kubelet (rig/kubelet.py) writes:
// <pods>/<namespace>/<pod>/<container>.json. It never starts, stops or writes a pod.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	remoteclient "k8s.io/client-go/tools/remotecommand"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crilogs "k8s.io/cri-client/pkg/logs"
	remoteserver "k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	idleLimit     = 4 * time.Hour    // kubelet's --streaming-connection-idle-timeout
	creationLimit = 30 * time.Second // kubelet's limit for a client to open its streams
	outputLimit   = 5 * time.Second  // for children of an exec that keep its output open
)

// container is what the rig's kubelet says about one container.
type container struct {
	Log      string   `json:"log"`
	Previous string   `json:"previous"`
	Folder   string   `json:"folder"`
	Env      []string `json:"env"`
	Running  bool     `json:"running"`
}

type server struct{ pods string }

func (s *server) find(namespace, pod, name string) (*container, error) {
	text, err := os.ReadFile(filepath.Join(s.pods, namespace, pod, name+".json"))
	if err != nil {
		return nil, fmt.Errorf("container %q of pod %s/%s is not here", name, namespace, pod)
	}
	found := &container{}
	return found, json.Unmarshal(text, found)
}

func (s *server) logs(w http.ResponseWriter, r *http.Request) {
	namespace, pod, name := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	options, err := logOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	found, err := s.find(namespace, pod, name)
	if err != nil {
		// The kubelet's own words: the API server knows that the pod has such a container.
		http.Error(w, fmt.Sprintf("container %q in pod %q is waiting to start: ContainerCreating", name, pod),
			http.StatusBadRequest)
		return
	}
	path := found.Log
	if options.Previous {
		path = found.Previous
	}
	if path == "" {
		http.Error(w, fmt.Sprintf("container %q of pod %s/%s has no such log", name, namespace, pod),
			http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	out := &flushed{w, w.(http.Flusher)}
	out.flusher.Flush()
	state := &states{server: s, namespace: namespace, pod: pod, name: name}
	err = crilogs.ReadLogs(r.Context(), nil, path, name, crilogs.NewLogOptions(options, time.Now()), state, out, out)
	if err != nil && r.Context().Err() == nil {
		log.Printf("logs of %s/%s %s: %v", namespace, pod, name, err)
	}
}

// logOptions reads the API server's query into what Kubernetes' log reader takes.
func logOptions(query url.Values) (*v1.PodLogOptions, error) {
	options := &v1.PodLogOptions{
		Follow:     query.Get("follow") == "true",
		Previous:   query.Get("previous") == "true",
		Timestamps: query.Get("timestamps") == "true",
	}
	for name, place := range map[string]**int64{
		"tailLines": &options.TailLines, "limitBytes": &options.LimitBytes, "sinceSeconds": &options.SinceSeconds,
	} {
		if text := query.Get(name); text != "" {
			number, err := strconv.ParseInt(text, 10, 64)
			if err != nil || number < 0 {
				return nil, fmt.Errorf("%s is no count: %q", name, text)
			}
			*place = &number
		}
	}
	if text := query.Get("sinceTime"); text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, err
		}
		options.SinceTime = &metav1.Time{Time: since}
	}
	return options, nil
}

type flushed struct {
	writer  io.Writer
	flusher http.Flusher
}

func (f *flushed) Write(data []byte) (int, error) {
	count, err := f.writer.Write(data)
	f.flusher.Flush()
	return count, err
}

// states tells the log reader when to stop following: once the container has ended.
type states struct {
	criapi.RuntimeService
	server               *server
	namespace, pod, name string
}

func (s *states) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	state := runtimeapi.ContainerState_CONTAINER_EXITED
	if found, err := s.server.find(s.namespace, s.pod, s.name); err == nil && found.Running {
		state = runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: id, State: state}}, nil
}

func (s *server) exec(w http.ResponseWriter, r *http.Request) {
	options, err := remoteserver.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	found, err := s.find(r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"))
	if err == nil && !found.Running {
		err = fmt.Errorf("container %q is not running", r.PathValue("container"))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	command := r.URL.Query()["command"]
	remoteserver.ServeExec(w, r, found, r.PathValue("pod"), "", r.PathValue("container"), command, options,
		idleLimit, creationLimit, remotecommand.SupportedStreamingProtocols)
}

// ExecInContainer runs a command as the container's processes run: its folder, its environment.
func (c *container) ExecInContainer(
	ctx context.Context, _ string, _ types.UID, _ string, command []string,
	in io.Reader, out, errOut io.WriteCloser, tty bool, _ <-chan remoteclient.TerminalSize, _ time.Duration,
) error {
	if tty {
		return fmt.Errorf("process nodes have no terminals: leave -t out")
	}
	if len(command) == 0 {
		return fmt.Errorf("no command")
	}
	run := osexec.CommandContext(ctx, command[0], command[1:]...)
	run.Dir, run.Env = c.Folder, c.Env
	run.Stdout, run.Stderr = out, errOut
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	run.WaitDelay = outputLimit
	if in == nil {
		return exitError(run.Run())
	}
	// Not run.Stdin: Wait would wait for a client that leaves its stdin open.
	pipe, err := run.StdinPipe()
	if err != nil {
		return err
	}
	if err := run.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(pipe, in)
		_ = pipe.Close()
	}()
	return exitError(run.Wait())
}

func exitError(err error) error {
	ended, isExit := err.(*osexec.ExitError)
	if !isExit {
		return err
	}
	code := ended.ExitCode()
	if status, known := ended.Sys().(syscall.WaitStatus); known && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return utilexec.CodeExitError{Err: err, Code: code}
}

func main() {
	pods := flag.String("pods", "", "folder with a record for each container")
	address := flag.String("address", "127.0.0.1:0", "where to listen")
	certificate := flag.String("certificate", "", "file with the server's certificate")
	key := flag.String("key", "", "file with its key")
	clients := flag.String("client-ca", "", "file with the certificate that signs clients (the API server)")
	flag.Parse()
	authority, err := os.ReadFile(*clients)
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	s := &server{pods: *pods}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	routes.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	for _, method := range []string{"GET", "POST"} {
		routes.HandleFunc(method+" /exec/{namespace}/{pod}/{container}", s.exec)
	}
	listener := &http.Server{
		Addr: *address, Handler: routes, ReadHeaderTimeout: creationLimit,
		// Whoever can exec here can run anything, so only the API server may ask. HTTP/1.1 because
		// SPDY and WebSocket begin as an upgrade of it.
		TLSConfig:    &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	log.Fatal(listener.ListenAndServeTLS(*certificate, *key))
}
