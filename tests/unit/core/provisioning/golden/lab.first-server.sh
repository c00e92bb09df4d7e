#!/usr/bin/env bash
# Written by `gpuplane clusters join-script`. Run as root; running it again changes nothing.
set -euo pipefail
umask 077

readonly CLUSTER='lab'
readonly ROLE='first-server'
readonly VERSION='v1.33.1+k3s1'
readonly ENDPOINT='k3s.lab.example.com'
readonly NVIDIA_TOOLKIT='1.17.8-1'
readonly NVIDIA_KEY='C95B321B61E88C1809C4F759DDCAE044F796ECB0'
readonly SHA256_AMD64='0000000000000000000000000000000000000000000000000000000000000000'
readonly SHA256_ARM64=''

say() { printf 'gpuplane: %s\n' "$*" >&2; }
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
  printf 'deb [signed-by=/etc/apt/keyrings/%s.gpg] %s\n' "$1" "$3" \
    | put "/etc/apt/sources.list.d/$1.list" 0644 || true
  apt-get update -q
}

# The token comes by a file that only root reads: never by an argument, which `ps` shows to all.
: "${GPUPLANE_JOIN_TOKEN_FILE:?Name the file that holds the token, such as /root/join-token.}"
[ -f "$GPUPLANE_JOIN_TOKEN_FILE" ] || refuse "There is no file $GPUPLANE_JOIN_TOKEN_FILE."
case "$(stat -c '%U %a' -- "$GPUPLANE_JOIN_TOKEN_FILE")" in
  'root 600' | 'root 400') ;;
  *) refuse "$GPUPLANE_JOIN_TOKEN_FILE has to be root's, with mode 0600 or 0400." ;;
esac
[ -s "$GPUPLANE_JOIN_TOKEN_FILE" ] || refuse "$GPUPLANE_JOIN_TOKEN_FILE is empty."

if grep -qs 0x10de /sys/bus/pci/devices/*/vendor; then
  readonly HAS_NVIDIA=1
else
  readonly HAS_NVIDIA=
fi
if [ -n "$HAS_NVIDIA" ]; then
  installed="$(dpkg-query -W -f '${Version}' nvidia-container-toolkit 2>/dev/null || true)"
  if [ "$installed" != "$NVIDIA_TOOLKIT" ]; then
    say "NVIDIA container toolkit $NVIDIA_TOOLKIT"
    add_repository nvidia-container-toolkit https://nvidia.github.io/libnvidia-container/gpgkey \
      "https://nvidia.github.io/libnvidia-container/stable/deb/$ARCH /" "$NVIDIA_KEY"
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --allow-change-held-packages \
      "nvidia-container-toolkit=$NVIDIA_TOOLKIT" "nvidia-container-toolkit-base=$NVIDIA_TOOLKIT" \
      "libnvidia-container-tools=$NVIDIA_TOOLKIT" "libnvidia-container1=$NVIDIA_TOOLKIT"
    apt-mark hold nvidia-container-toolkit >/dev/null
  fi
else
  say 'No NVIDIA device here: its runtime is left out.'
fi

changed=
mode=server
unit=k3s
[ "$mode" = server ] || unit=k3s-agent

case "$ARCH" in
  amd64) readonly SHA256="$SHA256_AMD64" ASSET=k3s ;;
  arm64) readonly SHA256="$SHA256_ARM64" ASSET=k3s-arm64 ;;
esac
[ -n "$SHA256" ] || refuse "The specification has no digest for $ARCH."
if ! echo "$SHA256  /usr/local/bin/k3s" | sha256sum --check --status 2>/dev/null; then
  say "k3s $VERSION"
  curl -fsSL --proto '=https' --retry 3 -o "$WORK/k3s" \
    "https://github.com/k3s-io/k3s/releases/download/${VERSION/+/%2B}/$ASSET"
  echo "$SHA256  $WORK/k3s" | sha256sum --check --status || refuse 'The digest of k3s is another.'
  install -m 0755 -- "$WORK/k3s" /usr/local/bin/.k3s.new
  mv -f -- /usr/local/bin/.k3s.new /usr/local/bin/k3s
  changed=1
fi

put /etc/rancher/k3s/gpuplane-token 0600 <"$GPUPLANE_JOIN_TOKEN_FILE" && changed=1
cat >"$WORK/config" <<'CONFIG'
{
  "token-file": "/etc/rancher/k3s/gpuplane-token",
  "cluster-init": true,
  "tls-san": [
    "k3s.lab.example.com"
  ],
  "cluster-cidr": "10.42.0.0/16",
  "service-cidr": "10.43.0.0/16",
  "secrets-encryption": true,
  "write-kubeconfig-mode": "0600",
  "default-runtime": "nvidia"
}
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
