# The VAE experiments in the same workflow: what all jobs share → a job × (method, seed) → table, figures.
#
#     snakemake -s recipes/study/Snakefile --cores 2 vae --config experiment=ssvae
#
# The experiment's own YAML names normalizers, estimators and seeds; a job is one call of its command.

import yaml

EXPERIMENTS = sorted(path.stem for path in (HERE.parent / "vae").glob("*.yaml") if "-" not in path.stem)
EXPERIMENT = config["experiment"]
if EXPERIMENT not in EXPERIMENTS:
    raise WorkflowError(f"experiment {EXPERIMENT!r} is none of {', '.join(EXPERIMENTS)}")
VAE_DEFAULTS = HERE.parent / "vae" / f"{EXPERIMENT}.yaml"
VAE_CONFIG = Path(config["experiment_config"] or VAE_DEFAULTS)
if not VAE_CONFIG.is_file():
    raise WorkflowError(f"experiment_config {VAE_CONFIG} does not exist; leave it out for {VAE_DEFAULTS}")
VAE_OUT = config["output"].format(corpus=EXPERIMENT)
VAE_RUN = VAE_OUT + "/{method}-seed{seed}"


def vae_choice(key):
    """A key of the experiment: from its YAML, or from the one that states every default."""
    chosen = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (VAE_DEFAULTS, VAE_CONFIG)]
    return (chosen[0] | (chosen[1] or {})).get(key, [])


def vae_results(wildcards):
    """The results of every job."""
    methods = [*vae_choice("normalizers"), *vae_choice("estimators")]
    return expand(VAE_RUN + "/results.json", method=methods, seed=vae_choice("seeds"))


def vae_method(wildcards):
    """The option that chooses a job's method."""
    kind = "estimator" if wildcards.method in vae_choice("estimators") else "normalizer"
    return f"--{kind} {quote(wildcards.method)}"


VAE_GPUS = int(config["experiment_gpus"])
VAE_PYTHON = f"torchrun --standalone --nproc_per_node={VAE_GPUS}" if VAE_GPUS > 1 else "python"
VAE_COMMAND = f"{VAE_PYTHON} -m onmt_evsoftmax.vae {EXPERIMENT} --config {quote(str(VAE_CONFIG))} -o {quote(VAE_OUT)}"
if config.get("data_dir"):
    VAE_COMMAND += f" --data-dir {quote(str(config['data_dir']))}"


localrules: vae, vae_table


rule vae:
    input: VAE_OUT + "/table.txt", VAE_OUT + "/figures"


# Checkpoints are no declared outputs: an interrupted training finds them and goes on.
rule vae_shared:
    input: str(VAE_CONFIG)
    output: touch(VAE_OUT + "/shared/trained")
    log: VAE_OUT + "/logs/shared.log"
    resources: gpu=VAE_GPUS
    shell: "OMP_NUM_THREADS={threads} " + VAE_COMMAND + " --shared-only >{log:q} 2>&1"


rule vae_job:
    input: VAE_OUT + "/shared/trained"
    output: VAE_RUN + "/results.json"
    log: VAE_OUT + "/logs/{method}-seed{seed}.log"
    params: method=vae_method
    resources: gpu=VAE_GPUS
    shell:
        "OMP_NUM_THREADS={threads} " + VAE_COMMAND + " {params.method} --seed {wildcards.seed}"
        " >{log:q} 2>&1"


rule vae_table:
    input: vae_results
    output:
        tables=expand(VAE_OUT + "/table.{kind}", kind=["txt", "md", "tex", "json"]),
        figures=directory(VAE_OUT + "/figures"),
    log: VAE_OUT + "/logs/table.log"
    shell:
        "python -m onmt_evsoftmax.vae table {VAE_OUT:q} $(printf ' -o %s' {output.tables:q}) >{log:q} 2>&1 &&"
        " python -m onmt_evsoftmax.vae figures {VAE_OUT:q} -o {output.figures:q}.tmp --format png pdf"
        " >>{log:q} 2>&1 && rm -rf {output.figures:q} && mv {output.figures:q}.tmp {output.figures:q} &&"
        " cat {output.tables[0]:q}"
