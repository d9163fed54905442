# Sourced by the other scripts, in the repository's root: makes .venv and installs captioner into it.

say() { printf '\n==> %s\n' "$*"; }

# Run apt-get as root; fails where that is not possible without asking.
apt_get() {
    command -v apt-get > /dev/null || return 1
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo > /dev/null && sudo -n true 2> /dev/null || return 1
        as_root=(sudo -n)
    fi
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update > /dev/null || true
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$@" > /dev/null
}

# The first Python that is new enough.
find_python() {
    local python
    for python in python3 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
            echo "$python"
            return
        fi
    done
    echo "captioner needs Python 3.11 or newer, and none is on the PATH: install one and run this again" >&2
    return 1
}

make_venv() {
    if .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
        return
    fi
    local python
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2> /dev/null; then
        local package
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        say "installing $package"
        if ! apt_get "$package"; then
            echo "$python cannot make virtual environments: run 'apt-get install $package' as root" >&2
            return 1
        fi
    fi
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

# install [EXTRA]: editable, again only when pyproject.toml or the place has changed.
install() {
    make_venv
    local wanted stamp=.venv/installed${1:+-$1}
    wanted="$(sha256sum < pyproject.toml) $PWD"
    if [ "$(cat "$stamp" 2> /dev/null)" != "$wanted" ]; then
        say "installing captioner${1:+ with its $1 extra} into .venv (some minutes, the first time)"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${1:+[$1]}"
        echo "$wanted" | tee .venv/installed > "$stamp"
    fi
}
