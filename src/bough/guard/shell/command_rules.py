"""The rule for each command. A command without a rule is UNKNOWN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from bough.guard.risk import RiskFinding
from bough.guard.shell import files, network, runners, system
from bough.guard.shell.call import ShellCall
from bough.guard.shell.git import git

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
        files.read,
        "ls dir cat tac head tail less more wc cut tr diff cmp comm file stat du df realpath readlink nl od hexdump "
        "strings md5sum sha1sum sha256sum sha512sum b2sum cksum column paste join fold fmt rev expand unexpand jq "
        "base64 base32 xmllint lsof pgrep pstree lscpu zcat bzcat xzcat zgrep getfacl lsattr",
    ),
    (files.search, "grep egrep fgrep rg"),
    (files.read_or_write, "sort tree shuf iconv"),
    (files.write_second, "uniq xxd"),
    (files.remove, "rm rmdir unlink"),
    (files.destroy, "shred truncate wipe srm scrub"),
    (files.make, "mkdir touch mktemp mkfifo"),
    (files.change, "tee patch split csplit gzip gunzip bzip2 bunzip2 xz unxz zstd dos2unix unix2dos sponge"),
    (files.move, "mv rename"),
    (files.copy, "cp install"),
    (files.link, "ln link"),
    (files.dd, "dd"),
    (files.change_mode, "chmod"),
    (files.change_owner, "chown chgrp"),
    (files.find, "find fd"),
    (files.sed, "sed gsed"),
    (files.awk, "awk gawk mawk nawk"),
    (files.archive, "tar bsdtar zip unzip 7z cpio ar"),
    (files.change_folder, "cd pushd chdir"),
    (files.change_history, "history"),
    (files.show_environment, "printenv"),
    (files.show_or_set_date, "date"),
    (git, "git"),
    (network.curl, "curl wget aria2c http https xh"),
    (network.connect, "ping dig nslookup host whois traceroute tracepath nmap ftp lynx w3m links"),
    (network.ssh, "ssh mosh autossh"),
    (network.transfer, "scp sftp rsync rclone"),
    (network.open_raw_connection, "nc ncat netcat socat telnet"),
    (network.manage_packages, "pip pip3 npm yarn pnpm cargo go uv poetry pdm gem bundle composer conda brew twine"),
    (network.fetch_and_run, "npx uvx pipx bunx"),
    (runners.assess_shell_command, "sh bash dash zsh ksh ash fish rbash mksh csh tcsh pwsh"),
    (runners.evaluate, "eval"),
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
        system.change_machine,
        "fdisk sfdisk cfdisk parted wipefs umount swapoff swapon shutdown reboot halt poweroff init telinit useradd "
        "userdel usermod groupadd groupdel passwd chpasswd visudo iptables ip6tables nft ufw sysctl modprobe insmod "
        "rmmod at batch chattr setfacl setcap losetup cryptsetup vgremove lvremove pvremove debugfs kexec apt apt-get "
        "dpkg yum dnf pacman apk zypper snap blkdiscard hdparm mkswap tune2fs hwclock update-rc.d launchctl",
    ),
    (system.control_services, "systemctl service"),
    (system.mount, "mount"),
    (system.crontab, "crontab"),
    (system.kill, "kill"),
    (system.kill_by_name, "pkill killall xkill"),
    (system.unset, "unset"),
    (
        system.run_project_tool,
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


def prefix_rule(name: str) -> Rule | None:
    """Return the rule for a name with a version or variant (`mkfs.ext4`, `python3.12`, `bash-5.2`), if there is one."""
    stem = name.split(".")[0].split("-")[0]
    if stem in ("mkfs", "mke2fs", "fsck"):
        return system.change_machine
    if stem in ("python3", "python", "python2", "perl5", "perl", "bash", "ruby", "php") and name != stem:
        return RULES.get("perl" if stem == "perl5" else stem)
    return None
