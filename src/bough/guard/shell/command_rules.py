"""The rule for each command. A command without a rule is UNKNOWN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from bough.guard.risk import RiskFinding
from bough.guard.shell import files, network, runners, system
from bough.guard.shell.call import ShellCall
from bough.guard.shell.git import assess_git

Rule: TypeAlias = Callable[[ShellCall], Iterator[RiskFinding]]
"""Yields the findings about a call; none for a harmless call."""

_NAMES: tuple[tuple[Rule, str], ...] = (
    (
        files.ignore_arguments,
        "echo printf true false : pwd whoami id uname seq expr sleep test [ [[ basename dirname nproc arch tty "
        "free uptime ps groups tput clear bc dc factor umask ulimit locale cal which type help return exit "
        "break continue shift wait jobs fg bg local set shopt popd dirs let getopts read times "
        "export declare typeset readonly",
    ),
    (
        files.assess_read,
        "ls dir cat tac head tail less more wc cut tr diff cmp comm file stat du df realpath readlink nl od hexdump "
        "strings md5sum sha1sum sha256sum sha512sum b2sum cksum column paste join fold fmt rev expand unexpand jq "
        "base64 base32 xmllint lsof pgrep pstree lscpu zcat bzcat xzcat zgrep getfacl lsattr",
    ),
    (files.assess_search, "grep egrep fgrep rg"),
    (files.assess_read_or_write, "sort tree shuf iconv"),
    (files.assess_write_to_second, "uniq xxd"),
    (files.assess_removal, "rm rmdir unlink"),
    (files.assess_destruction, "shred truncate wipe srm scrub"),
    (files.assess_creation, "mkdir touch mktemp mkfifo"),
    (files.assess_change, "tee patch split csplit gzip gunzip bzip2 bunzip2 xz unxz zstd dos2unix unix2dos sponge"),
    (files.assess_move, "mv rename"),
    (files.assess_copy, "cp install"),
    (files.assess_link, "ln link"),
    (files.assess_dd, "dd"),
    (files.assess_mode_change, "chmod"),
    (files.assess_owner_change, "chown chgrp"),
    (files.assess_find, "find fd"),
    (files.assess_sed, "sed gsed"),
    (files.assess_awk, "awk gawk mawk nawk"),
    (files.assess_archive, "tar bsdtar zip unzip 7z cpio ar"),
    (files.assess_folder_change, "cd pushd chdir"),
    (files.assess_history, "history"),
    (files.assess_printenv, "printenv"),
    (files.assess_date, "date"),
    (assess_git, "git"),
    (network.assess_curl, "curl wget aria2c http https xh"),
    (network.assess_connection, "ping dig nslookup host whois traceroute tracepath nmap ftp lynx w3m links"),
    (network.assess_ssh, "ssh mosh autossh"),
    (network.assess_transfer, "scp sftp rsync rclone"),
    (network.assess_raw_connection, "nc ncat netcat socat telnet"),
    (
        network.assess_package_manager,
        "pip pip3 npm yarn pnpm cargo go uv poetry pdm gem bundle composer conda brew twine",
    ),
    (network.assess_fetched_program, "npx uvx pipx bunx"),
    (runners.assess_shell_command, "sh bash dash zsh ksh ash fish rbash mksh csh tcsh pwsh"),
    (runners.assess_eval, "eval"),
    (runners.assess_sourced_file, "source ."),
    (runners.assess_deferred_text, "trap alias watch parallel"),
    (runners.assess_env, "env"),
    (
        runners.assess_as_root,
        "sudo doas su pkexec runuser run0 chroot unshare nsenter script systemd-run setpriv capsh",
    ),
    (
        runners.assess_interpreter,
        "python python2 python3 pypy pypy3 perl ruby node nodejs php lua Rscript deno bun tclsh",
    ),
    (
        system.assess_machine_change,
        "fdisk sfdisk cfdisk parted wipefs umount swapoff swapon shutdown reboot halt poweroff init telinit useradd "
        "userdel usermod groupadd groupdel passwd chpasswd visudo iptables ip6tables nft ufw sysctl modprobe insmod "
        "rmmod at batch chattr setfacl setcap losetup cryptsetup vgremove lvremove pvremove debugfs kexec apt apt-get "
        "dpkg yum dnf pacman apk zypper snap blkdiscard hdparm mkswap tune2fs hwclock update-rc.d launchctl",
    ),
    (system.assess_services, "systemctl service"),
    (system.assess_mount, "mount"),
    (system.assess_crontab, "crontab"),
    (system.assess_kill, "kill"),
    (system.assess_kill_by_name, "pkill killall xkill"),
    (system.assess_unset, "unset"),
    (
        system.assess_project_tool,
        "make gmake cmake ninja meson pytest tox nox ruff mypy pyright black isort flake8 pylint coverage tsc eslint "
        "prettier jest vitest mocha rustc gcc g++ clang cc c++ javac java mvn gradle gradlew rustfmt gofmt clippy "
        "shellcheck hadolint pre-commit sphinx-build mkdocs pandoc",
    ),
)

RULES: Mapping[str, Rule] = {
    **{name: rule for rule, names in _NAMES for name in names.split()},
    **dict.fromkeys(runners.PREFIXES, runners.assess_prefixed),
}
"""The rule for each command name."""


def find_prefix_rule(name: str) -> Rule | None:
    """Return the rule for a name with a version or variant (`mkfs.ext4`, `python3.12`, `bash-5.2`), if there is one."""
    stem = name.split(".")[0].split("-")[0]
    if stem in ("mkfs", "mke2fs", "fsck"):
        return system.assess_machine_change
    if stem in ("python3", "python", "python2", "perl5", "perl", "bash", "ruby", "php") and name != stem:
        return RULES.get("perl" if stem == "perl5" else stem)
    return None
