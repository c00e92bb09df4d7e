"""The texts of the join scripts, before `joining` puts in what a specification says.

Owns shell and nothing else. Parts run in this order: prelude, token, NVIDIA's runtime, k3s or
kubeadm. `@WORD@` is put in by `joining`; two of them stay, for the machine to put its token in.
"""

PRELUDE = """\
#!/usr/bin/env bash
# Written by `gpuplane clusters join-script`. Run as root; running it again changes nothing.
set -euo pipefail
umask 077

@VALUES@

say() { printf 'gpuplane: %s\\n' "$*" >&2; }
refuse() { say "$*"; exit 1; }

[ "$(id -u)" -eq 0 ] || refuse 'This has to run as root.'
command -v systemctl >/dev/null || refuse 'This needs systemd.'
command -v curl >/dev/null || refuse 'This needs curl.'

case "$(uname -m)" in
  x86_64) readonly ARCH=amd64 ;;
  aarch64) readonly ARCH=arm64 ;;
  *) refuse "There is no release for $(uname -m)." ;;
esac

WORK="$(mktemp -d)"
readonly WORK
trap 'rm -rf -- "$WORK"' EXIT

# Puts standard input at $1 with mode $2; says no, without touching it, when it is so already.
put() {
  local draft="$WORK/put"
  cat >"$draft"
  if cmp -s -- "$draft" "$1"; then return 1; fi
  install -D -m "$2" -- "$draft" "$1"
}

# Adds an apt repository ($1: name, $2: address, $3: its line) whose key has the fingerprint $4.
add_repository() {
  command -v apt-get >/dev/null || refuse 'Packages are taken from apt: Debian or Ubuntu.'
  command -v gpg >/dev/null || { apt-get update -q && apt-get install -q -y gnupg; }
  local key="$WORK/$1.key" found
  curl -fsSL --proto '=https' --retry 3 -o "$key" "$2"
  gpg --batch --quiet --show-keys --with-colons "$key" >"$WORK/$1.listing"
  found="$(awk -F: '/^fpr:/{print $10; exit}' "$WORK/$1.listing")"
  [ "$found" = "$4" ] || refuse "The key of $1 is ${found:-unreadable}, not $4."
  gpg --batch --yes --dearmor -o "$WORK/$1.gpg" "$key"
  install -D -m 0644 -- "$WORK/$1.gpg" "/etc/apt/keyrings/$1.gpg"
  printf 'deb [signed-by=/etc/apt/keyrings/%s.gpg] %s\\n' "$1" "$3" \\
    | put "/etc/apt/sources.list.d/$1.list" 0644 || true
  apt-get update -q
}
"""

TOKEN = """
# The token comes by a file that only root reads: never by an argument, which `ps` shows to all.
: "${GPUPLANE_JOIN_TOKEN_FILE:?Name the file that holds the token, such as /root/join-token.}"
[ -f "$GPUPLANE_JOIN_TOKEN_FILE" ] || refuse "There is no file $GPUPLANE_JOIN_TOKEN_FILE."
case "$(stat -c '%U %a' -- "$GPUPLANE_JOIN_TOKEN_FILE")" in
  'root 600' | 'root 400') ;;
  *) refuse "$GPUPLANE_JOIN_TOKEN_FILE has to be root's, with mode 0600 or 0400." ;;
esac
[ -s "$GPUPLANE_JOIN_TOKEN_FILE" ] || refuse "$GPUPLANE_JOIN_TOKEN_FILE is empty."
"""

NVIDIA = """
if grep -qs 0x10de /sys/bus/pci/devices/*/vendor; then
  readonly HAS_NVIDIA=1
else
  readonly HAS_NVIDIA=
fi
if [ -n "$HAS_NVIDIA" ]; then
  installed="$(dpkg-query -W -f '${Version}' nvidia-container-toolkit 2>/dev/null || true)"
  if [ "$installed" != "$NVIDIA_TOOLKIT" ]; then
    say "NVIDIA container toolkit $NVIDIA_TOOLKIT"
    add_repository nvidia-container-toolkit https://nvidia.github.io/libnvidia-container/gpgkey \\
      "https://nvidia.github.io/libnvidia-container/stable/deb/$ARCH /" "$NVIDIA_KEY"
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --allow-change-held-packages \\
      "nvidia-container-toolkit=$NVIDIA_TOOLKIT" "nvidia-container-toolkit-base=$NVIDIA_TOOLKIT" \\
      "libnvidia-container-tools=$NVIDIA_TOOLKIT" "libnvidia-container1=$NVIDIA_TOOLKIT"
    apt-mark hold nvidia-container-toolkit >/dev/null
  fi
else
  say 'No NVIDIA device here: its runtime is left out.'
fi
"""

K3S = """
changed=
mode=@MODE@
unit=k3s
[ "$mode" = server ] || unit=k3s-agent

case "$ARCH" in
  amd64) readonly SHA256="$SHA256_AMD64" ASSET=k3s ;;
  arm64) readonly SHA256="$SHA256_ARM64" ASSET=k3s-arm64 ;;
esac
[ -n "$SHA256" ] || refuse "The specification has no digest for $ARCH."
if ! echo "$SHA256  /usr/local/bin/k3s" | sha256sum --check --status 2>/dev/null; then
  say "k3s $VERSION"
  curl -fsSL --proto '=https' --retry 3 -o "$WORK/k3s" \\
    "https://github.com/k3s-io/k3s/releases/download/${VERSION/+/%2B}/$ASSET"
  echo "$SHA256  $WORK/k3s" | sha256sum --check --status || refuse 'The digest of k3s is another.'
  install -m 0755 -- "$WORK/k3s" /usr/local/bin/.k3s.new
  mv -f -- /usr/local/bin/.k3s.new /usr/local/bin/k3s
  changed=1
fi

put /etc/rancher/k3s/gpuplane-token 0600 <"$GPUPLANE_JOIN_TOKEN_FILE" && changed=1
cat >"$WORK/config" <<'CONFIG'
@CONFIG@
CONFIG
if [ -z "${HAS_NVIDIA:-}" ]; then
  sed -i 's/"default-runtime": "nvidia"/"debug": false/' "$WORK/config"
fi
put /etc/rancher/k3s/config.yaml 0600 <"$WORK/config" && changed=1
put "/etc/systemd/system/$unit.service" 0644 <<UNIT && changed=1
[Unit]
Description=k3s $mode of $CLUSTER
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/k3s $mode
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s

[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable --quiet "$unit.service"
if [ -n "$changed" ] || ! systemctl is-active --quiet "$unit.service"; then
  say "starting $unit ($ROLE of $CLUSTER at $ENDPOINT)"
  systemctl restart "$unit.service"
else
  say 'Nothing is to be done.'
fi
"""

KUBEADM = """
swapon --noheadings --show | grep -q . && refuse 'Swap is on: turn it off, in /etc/fstab as well.'
printf 'overlay\\nbr_netfilter\\n' | put /etc/modules-load.d/gpuplane.conf 0644 || true
modprobe overlay
modprobe br_netfilter
put /etc/sysctl.d/90-gpuplane.conf 0644 <<'SYSCTL' && sysctl --quiet --system
net.bridge.bridge-nf-call-iptables = 1
net.bridge.bridge-nf-call-ip6tables = 1
net.ipv4.ip_forward = 1
SYSCTL

installed="$(dpkg-query -W -f '${Version}' kubeadm 2>/dev/null || true)"
if [ "${installed%%-*}" != "$VERSION" ]; then
  [ ! -e /etc/kubernetes/kubelet.conf ] \\
    || refuse "This node runs $installed: upgrade it with \\`kubeadm upgrade\\`, not by joining."
  say "Kubernetes $VERSION"
  add_repository kubernetes "https://pkgs.k8s.io/core:/stable:/v@MINOR@/deb/Release.key" \\
    "https://pkgs.k8s.io/core:/stable:/v@MINOR@/deb/ /" "$KUBERNETES_KEY"
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --allow-change-held-packages containerd \\
    "kubeadm=$VERSION-*" "kubelet=$VERSION-*" "kubectl=$VERSION-*"
  apt-mark hold kubeadm kubelet kubectl >/dev/null
fi

if [ ! -e /etc/containerd/gpuplane ]; then
  mkdir -p -- /etc/containerd
  containerd config default >"$WORK/config.toml"
  sed -i 's/SystemdCgroup = false/SystemdCgroup = true/' "$WORK/config.toml"
  put /etc/containerd/config.toml 0644 <"$WORK/config.toml" || true
  if [ -n "${HAS_NVIDIA:-}" ]; then
    nvidia-ctk runtime configure --runtime=containerd --set-as-default
  fi
  systemctl restart containerd
  echo "$CLUSTER" >/etc/containerd/gpuplane
fi
systemctl enable --quiet containerd kubelet

if [ -e /etc/kubernetes/kubelet.conf ]; then
  say 'Nothing is to be done: this node is in a cluster.'
else
  cat >"$WORK/template" <<'CONFIG'
@CONFIG@
CONFIG
  token="$(tr -d '[:space:]' <"$GPUPLANE_JOIN_TOKEN_FILE")"
  [[ "$token" =~ ^[a-z0-9]{6}\\.[a-z0-9]{16}$ ]] \\
    || refuse 'The token is none of kubeadm: six characters, a point, sixteen characters.'
  key=
  if grep -q '@KEY@' "$WORK/template"; then
    # Made on the first server: kubeadm init phase upload-certs --upload-certs
    : "${GPUPLANE_CERTIFICATE_KEY_FILE:?Name the file that holds the certificate key.}"
    key="$(tr -d '[:space:]' <"$GPUPLANE_CERTIFICATE_KEY_FILE")"
    [[ "$key" =~ ^[a-f0-9]{64}$ ]] || refuse 'The certificate key has 64 hexadecimal digits.'
  fi
  # By the shell itself: an argument of sed could be seen.
  text="$(<"$WORK/template")"
  text="${text//@TOKEN@/$token}"
  printf '%s\\n' "${text//@KEY@/$key}" >"$WORK/kubeadm.yaml"
  say "kubeadm @VERB@ ($ROLE of $CLUSTER at $ENDPOINT)"
  kubeadm @VERB@ --config "$WORK/kubeadm.yaml"
fi
if [ -e /etc/kubernetes/pki/ca.crt ]; then
  digest="$(openssl x509 -in /etc/kubernetes/pki/ca.crt -noout -pubkey \\
    | openssl pkey -pubin -outform der | sha256sum | cut -d ' ' -f 1)"
  printf 'caCertHash: sha256:%s\\n' "$digest"
fi
"""
