"""Packaging, read from settings.ini so that every fact is stated once."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
ini = ConfigParser(delimiters=["="])
ini.read(here / "settings.ini", encoding="utf-8")
cfg = ini["DEFAULT"]


def listed(*extras: str) -> list[str]:
    "Requirements of several extras, each once."
    found = [name for extra in extras for name in cfg[f"{extra}_requirements"].split()]
    return list(dict.fromkeys(found))


def readme() -> str:
    "README with links that work on the page of a package index, too."
    text = (here / "README.md").read_text(encoding="utf-8")
    page, file = f"{cfg['git_url']}/blob/main/", f"{cfg['git_url']}/raw/main/"
    text = re.sub(r"(!\[[^\]]*\]\()(?!http)", rf"\1{file}", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!http|#)", rf"\1{page}", text)


class WithoutIndex(build_py):
    "Leaves out nbdev's index of definitions, which only tools for development read."

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[1] != "_modidx"]


# the papers' numbers and claims, which lie beside the notebooks
BESIDE = {
    f"hypvl.resources.{name}": f"papers_repro/{name}" for name in ("reference", "claims", "audit")
}

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=readme(),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    author_email=cfg["author_email"],
    url=cfg["git_url"],
    project_urls={"Changelog": f"{cfg['git_url']}/blob/main/CHANGELOG.md"},
    # code; prompts; names of ImageNet
    license_expression="Apache-2.0 AND MIT AND LicenseRef-WordNet-3.0",
    license_files=[
        *("LICENSE", "NOTICE", "hypvl/resources/WORDNET-LICENSE"),
        "hypvl/resources/README.md",  # with the MIT licence of the prompts
    ],
    keywords=cfg["keywords"].split(),
    packages=[*find_packages(include=["hypvl", "hypvl.*"]), *BESIDE],
    package_dir=BESIDE,
    cmdclass={"build_py": WithoutIndex},
    package_data={"hypvl": ["py.typed", "resources/*"], **dict.fromkeys(BESIDE, ["*.csv", "*.md"])},
    python_requires=">=" + cfg["min_python"],
    install_requires=cfg["requirements"].split(),
    extras_require={
        "models": listed("models"),
        "train": listed("models", "train"),
        "fast": listed("fast"),
        "search": listed("models", "train", "search"),
        "explore": listed("models", "train", "search", "explore"),
        "notebooks": listed("models", "train", "search", "explore", "notebooks"),
        "dev": listed("models", "train", "fast", "search", "explore", "notebooks", "dev"),
        "site": listed("site"),
    },
    entry_points={"console_scripts": cfg.get("console_scripts", "").split()},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
    zip_safe=False,
)
